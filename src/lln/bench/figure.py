"""The overview's figure: time, peak memory and concentration over the sequence length."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from lln.bench.overview import COMPARED, PEER

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Style(TypedDict):
    """How a curve looks."""

    color: str
    marker: str


# Okabe and Ito's palette, which colour-blind readers can tell apart; markers differ as well.
STYLES = {
    "sdpa": Style(color="#4D4D4D", marker="s"),
    "lln": Style(color="#0072B2", marker="o"),
    "lln_diag": Style(color="#D55E00", marker="^"),
}
MUTED = "#6B6B6B"
RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws `report` of `lln.bench.overview.run` into `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    setting, results = report["setting"], report["results"]
    with plt.rc_context(RC):
        figure = plt.figure(figsize=(11.5, 4.3), layout="constrained", dpi=160)
        grid = figure.add_gridspec(2, 3)
        time, memory = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 1])
        entropy = figure.add_subplot(grid[0, 2])
        gap = figure.add_subplot(grid[1, 2], sharex=entropy)
        _draw_time(time, results)
        _draw_memory(memory, results)
        _draw_concentration(entropy, gap, results, setting["sigma"])
        for axes in (time, memory, entropy, gap):
            length_axis(axes, setting["n"])
        for axes in (time, memory, gap):
            axes.set_xlabel("sequence length N")
        entropy.tick_params(labelbottom=False)
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06, wspace=0.06)  # type: ignore[union-attr,call-arg]
        figure.align_ylabels([entropy, gap])
        figure.supxlabel(
            f"forward pass, B=1, H={setting['heads']}, D={setting['head_dim']}, float32, "
            f"{setting['threads']} threads of {report['machine']['processor']}, "
            f"torch {report['torch']}",
            fontsize=8,
            color=MUTED,
        )
        figure.savefig(path)
        plt.close(figure)


def _draw_time(axes: "Axes", results: list[dict[str, Any]]) -> None:
    for name, label in COMPARED.items():
        _curve(axes, [(row["n"], 1e3 * row["seconds"][name]) for row in results], label, name)
    last = results[-1]
    for name in COMPARED:
        if name != PEER:
            axes.annotate(
                f"{last['speed_up'][name]:.0f}× faster",
                (last["n"], 1e3 * last["seconds"][name]),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                color=STYLES[name]["color"],
                fontsize=8,
                annotation_clip=False,
            )
    axes.set_title("Time per call (ms)")
    plain_log(axes)
    axes.legend(loc="upper left")


def _draw_memory(axes: "Axes", results: list[dict[str, Any]]) -> None:
    for name, label in COMPARED.items():
        peaks = [(row["n"], row["peak"][name]["bytes"]) for row in results]
        _curve(axes, [(n, peak / 2**20) for n, peak in peaks if peak], label, name)
    axes.set_title("Peak memory beyond the inputs (MiB)")
    plain_log(axes)
    axes.legend(loc="upper left")


def _draw_concentration(
    entropy: "Axes", gap: "Axes", results: list[dict[str, Any]], sigma: float
) -> None:
    lengths = [row["n"] for row in results]
    limit = [math.log2(n) for n in lengths]
    entropy.plot(lengths, limit, color=MUTED, linestyle=":", linewidth=1.2, label="even, log₂ N")
    for key, label, style in (("softmax", "softmax", PEER), ("lln", "LLN", "lln")):
        for axes, measure in ((entropy, "entropy_bits"), (gap, "spectral_gap")):
            _curve(axes, [(row["n"], row[measure][key]) for row in results], label, style)
    entropy.set_title(f"Concentration (Gaussian, σ = {sigma:g})")
    entropy.set_ylabel("entropy (bits)")
    entropy.set_ylim(0, 1.1 * limit[-1])
    entropy.legend(loc="lower right", ncols=3, columnspacing=1.2, handlelength=1.6)
    gap.set_ylabel("spectral gap")
    gap.set_ylim(0, 1.05)


def _curve(axes: "Axes", points: Sequence[tuple[float, float]], label: str, style: str) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **STYLES[style])


def plain_log(axes: "Axes") -> None:
    """A logarithmic axis of what is drawn that says 100, not 10², and 20 too if it is short."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 100 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def length_axis(axes: "Axes", lengths: Sequence[int]) -> None:
    """A logarithmic axis with a tick at each length."""
    axes.set_xscale("log", base=2)
    names = [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths]
    axes.set_xticks(lengths, names)
    axes.minorticks_off()
