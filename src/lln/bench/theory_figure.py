"""The pictures of `lln figure`."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lln.bench.figure import MUTED, RC
from lln.bench.theory_sums import BROAD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Report = dict[str, Any]
Style = dict[str, Any]

# Okabe and Ito's colours; a kernel and its linear form share theirs, and differ in the line.
STYLES: dict[str, Style] = {
    "softmax": {"label": "softmax", "color": "#000000", "linewidth": 4, "alpha": 0.3},
    "lln": {"label": "LLN, α = β = 1", "color": "#56B4E9", "marker": "v"},
    "lln_paper": {"label": "LLN, paper's constants", "color": "#D55E00", "marker": "^"},
    "lln_variance": {"label": "LLN, variance matched", "color": "#009E73", "marker": "s"},
    "lln_entropy": {"label": "LLN, entropy matched", "color": "#0072B2", "marker": "o"},
    "relu_kernel": {"label": "ReLU kernel", "color": "#E69F00"},
    "relu": {"label": "linear ReLU", "color": "#E69F00", "linestyle": (0, (3, 3))},
    "quadratic_kernel": {"label": "quadratic kernel", "color": "#CC79A7"},
    "quadratic": {"label": "linear quadratic", "color": "#CC79A7", "linestyle": (3, (3, 3))},
}
# For the sizes d of a setting, in its order.
SIZES: tuple[Style, ...] = (
    {"color": "#56B4E9", "marker": "v"},
    {"color": "#E69F00", "marker": "^"},
    {"color": "#0072B2", "marker": "o"},
    {"color": "#D55E00", "marker": "s"},
    {"color": "#009E73", "marker": "D"},
)
THEORY: Style = {"color": "#000000", "linestyle": "--", "linewidth": 1.2, "label": "predicted"}


def draw(report: Report, path: Path) -> None:
    """Draws a report of `lln.bench.theory.run` into `path`, a PNG or SVG by its name."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, panels = DRAWINGS[report["figure"]]
    # A fixed salt and no date: the same report gives the same file.
    with plt.rc_context({**RC, "svg.hashsalt": "lln"}):
        figure, axes = plt.subplots(
            1, panels, figsize=(1 + 4.2 * panels, 4.2), layout="constrained", dpi=160
        )
        drawing(report, *axes)
        _explain(figure, report)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _explain(figure: "Figure", report: Report) -> None:
    """Says below the panels what was measured."""
    setting = report["setting"]
    if "n" in setting:
        dims = ", ".join(map(str, setting["head_dims"]))
        text = f"Gaussian q and k, N = {setting['n']}, d = {dims}, {setting['draws']} draws"
    else:
        text = f"{setting['samples']:,} sums of each kind"
    text += f", seed {setting['seed']}, torch {report['torch']}"
    figure.supxlabel(text, fontsize=8, color=MUTED)


def _values(rows: Sequence[Report], name: str, measure: str) -> list[float]:
    return [row[name][measure] for row in rows]


def _concentration(report: Report, entropy: "Axes", gap: "Axes") -> None:
    rows = report["results"]
    temperatures = [row["temperature"] for row in rows]
    for name, style in STYLES.items():
        for axes, measure in ((entropy, "entropy"), (gap, "gap")):
            mean, std = (_values(rows, name, key) for key in (measure, f"{measure}_std"))
            axes.plot(temperatures, mean, **style)
            low = [m - s for m, s in zip(mean, std, strict=True)]
            high = [m + s for m, s in zip(mean, std, strict=True)]
            axes.fill_between(temperatures, low, high, color=style["color"], alpha=0.1, lw=0)
    for axes in (entropy, gap):
        axes.set_xscale("log")
        axes.set_xticks([0.2, 0.3, 0.5, 1, 2], ["0.2", "0.3", "0.5", "1", "2"])
        axes.minorticks_off()
        axes.set_xlabel(r"temperature $1\,/\,(\sigma_q \sigma_k)$")
        axes.set_ylim(bottom=0)
    entropy.set_title("Entropy of P (bits)")
    gap.set_title("Spectral gap of P")
    entropy.fill_between([], [], color=MUTED, alpha=0.3, lw=0, label="± std of single draws")
    handles, labels = entropy.get_legend_handles_labels()
    gap.figure.legend(handles, labels, loc="outside right center")


def _log_moments(report: Report, variance: "Axes", mean: "Axes", deviation: "Axes") -> None:
    rows = report["results"]
    x = [row["variance"] for row in rows]
    for axes, measure, color, marker in (
        (variance, "variance", "#0072B2", "o"),
        (mean, "mean", "#D55E00", "^"),
    ):
        axes.plot(x, _values(rows, "predicted", measure), **THEORY)
        std = _values(rows, "softmax", f"{measure}_std")
        axes.errorbar(
            x,
            _values(rows, "softmax", measure),
            std,
            color=color,
            marker=marker,
            linestyle="none",
            label="measured",
        )
        axes.set_title(f"{measure.capitalize()} of log P of softmax")
        axes.legend()
        percent = _values(rows, "percent", measure)
        deviation.plot(x, percent, color=color, marker=marker, label=measure)
    deviation.axhspan(-3, 3, color="#009E73", alpha=0.12, lw=0, label="± 3 %")
    deviation.set_title("Measured against predicted (%)")
    deviation.legend()
    for axes in (variance, mean, deviation):
        axes.set_xlabel("variance σ² of q and of k")


def _matched_variance(report: Report, variance: "Axes", ratio: "Axes") -> None:
    dims = report["setting"]["head_dims"]
    shown = 64 if 64 in dims else dims[0]
    for head_dim, style in zip(dims, SIZES, strict=False):
        rows = [row for row in report["results"] if row["head_dim"] == head_dim]
        x = [row["variance"] for row in rows]
        softmax = _values(rows, "softmax", "variance")
        if head_dim == shown:
            for name in ("softmax", "lln", "lln_paper", "lln_variance"):
                variance.plot(x, _values(rows, name, "variance"), **STYLES[name])
            predicted = _values(rows, "predicted", "lln")
            variance.plot(x, predicted, **{**THEORY, "label": "Eq. 32 for α = β = 1"})
        for name, line in (("lln_paper", "-"), ("lln_variance", ":")):
            found = _values(rows, name, "variance")
            share = [value / target for value, target in zip(found, softmax, strict=True)]
            ratio.plot(x, share, linestyle=line, **style)
        ratio.plot([], [], **style, label=f"d = {head_dim}")
    for text, line in (("paper's constants", "-"), ("variance matched", ":")):
        ratio.plot([], [], color="#000000", linestyle=line, label=text)
    variance.set_title(f"Variance of log P, d = {shown}")
    variance.legend()
    ratio.set_yscale("log", base=2)
    ratio.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ratio.set_title("Variance of LLN's log P / softmax's")
    ratio.legend()
    for axes in (variance, ratio):
        axes.set_xlabel("variance σ² of q and of k")


def _moderate(report: Report, variance: "Axes", deviation: "Axes") -> None:
    x = report["setting"]["variances"]
    for row, style in zip(report["results"], SIZES, strict=False):
        text = f"d = {row['count']}"
        variance.plot(x, row["measured"], **style, linestyle="none", label=text)
        variance.plot(x, row["predicted"], **{**THEORY, "color": style["color"], "label": "_"})
        deviation.plot(x, row["percent"], **style, label=text)
    variance.plot([], [], **{**THEORY, "label": "Fenton (Eq. 28)"})
    deviation.axhspan(-5, 5, color="#009E73", alpha=0.12, lw=0, label="± 5 %")
    variance.set_title("Variance of the log of a sum of d log-normals")
    deviation.set_title("Measured against Fenton (%)")
    for axes in (variance, deviation):
        axes.set_xlabel("variance σ² of the logarithm of a term")
        axes.legend()


def _broad(report: Report, variance: "Axes", residual: "Axes") -> None:
    x = report["setting"]["variances"]
    for row, style in zip(report["results"], SIZES, strict=False):
        line = [row["a"] * value + row["b"] for value in x]
        text = f"d = {row['count']}: {row['a']:.2f} σ² − {-row['b']:.2f}, R² = {row['r2']:.3f}"
        variance.plot(x, row["measured"], **style, linestyle="none", label=text)
        variance.plot(x, line, **{**THEORY, "color": style["color"], "label": "_"})
        rest = [value - fit for value, fit in zip(row["measured"], line, strict=True)]
        residual.plot(x, rest, **style, label=f"d = {row['count']}")
    variance.set_ylim(bottom=0)
    variance.set_title(f"Variance of the log of a sum; lines from σ² = {BROAD:g} on")
    residual.set_title("Measured − line")
    for axes in (variance, residual):
        axes.set_xlabel("variance σ² of the logarithm of a term")
        axes.legend()


def _distribution(report: Report, before: "Axes", after: "Axes", tail: "Axes") -> None:
    (row,) = report["results"]
    start, stop = row["range"]
    softmax = row["density"]["softmax"]
    width = (stop - start) / len(softmax)
    x = [start + (place + 0.5) * width for place in range(len(softmax))]
    matched = ("lln_paper", "lln_variance", "lln_entropy")
    for axes, names in ((before, ("lln",)), (after, matched), (tail, matched)):
        axes.fill_between(x, softmax, step="mid", color="#000000", alpha=0.2, lw=0, label="softmax")
        axes.plot(x, _normal(x, row["softmax"]), color="#000000", linestyle="--", linewidth=1)
        for name in names:
            color, label = STYLES[name]["color"], STYLES[name]["label"]
            axes.step(x, row["density"][name], where="mid", color=color, label=label)
            axes.plot(x, _normal(x, row[name]), color=color, linestyle="--", linewidth=1)
        axes.plot([], [], **{**THEORY, "label": "normal of the same\nmean and variance"})
        axes.set_xlabel("log P")
    before.legend()
    after.legend()
    before.set_title(f"Density of log P at σ² = {row['variance']:g}, unmatched")
    after.set_title("After matching")
    tail.set_title("After matching, logarithmic")
    tail.set_yscale("log")
    tail.set_ylim(1e-6, 1)


def _normal(x: Sequence[float], moments: dict[str, float]) -> list[float]:
    variance = moments["variance"]
    scale = 1 / math.sqrt(2 * math.pi * variance)
    return [scale * math.exp(-((value - moments["mean"]) ** 2) / (2 * variance)) for value in x]


DRAWINGS: dict[str, tuple[Callable[..., None], int]] = {
    "2": (_concentration, 2),
    "5a": (_log_moments, 3),
    "5b": (_matched_variance, 2),
    "6a": (_moderate, 2),
    "6b": (_broad, 2),
    "7": (_distribution, 3),
}
