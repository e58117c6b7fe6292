"""The figure of `lln bench op`: time and peak memory over the sequence length, with exponents."""

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lln.bench.figure import MUTED, RC, length_axis, plain_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIME = "forward+backward"
EMPHASISED = {"sdpa": "#000000", "lln": "#0072B2", "lln_diag": "#D55E00", "products": "#6B6B6B"}
MARKERS = "osD^v<>pPX*h"


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws `report` of `lln.bench.op.run` into `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    setting, names = report["setting"], list(report["exponents"])
    names.sort(key=lambda name: _points(report, name, TIME)[-1][1], reverse=True)
    panels = {TIME: f"Time, {TIME} (ms)"}
    if setting["memory"]:
        panels["memory"] = "Peak memory beyond the inputs (MiB)"
    with plt.rc_context(RC):
        figure, grid = plt.subplots(
            1, len(panels), figsize=(6.5 * len(panels), 6.5), layout="constrained", squeeze=False
        )
        for axes, (quantity, title) in zip(grid[0], panels.items(), strict=True):
            _panel(axes, report, names, quantity, title)
            plain_log(axes)
            length_axis(axes, setting["n"])
            axes.set_xlabel("sequence length N")
        figure.supxlabel(
            f"B={setting['batch']}, H={setting['heads']}, D={setting['head_dim']}, "
            f"{setting['dtype']}, {setting['threads']} threads of "
            f"{report['machine']['processor']}, torch {report['torch']}; "
            "in brackets: the fitted power of N",
            fontsize=8,
            color=MUTED,
        )
        figure.savefig(path, dpi=140)
        plt.close(figure)


def _panel(
    axes: "Axes", report: dict[str, Any], names: list[str], quantity: str, title: str
) -> None:
    import matplotlib

    others = [name for name in sorted(names) if name not in EMPHASISED]
    maps: Any = matplotlib.colormaps
    colours = dict(zip(others, cycle((*maps["tab20"].colors, *maps["tab20b"].colors))))
    for name in names:
        points = _points(report, name, quantity)
        if not points:
            continue
        power = report["exponents"][name][quantity]
        strong = name in EMPHASISED
        axes.plot(
            *zip(*points, strict=True),
            label=name if power is None else f"{name} ({power:.2f})",
            color=EMPHASISED[name] if strong else colours[name],
            linewidth=2.4 if strong else 1.1,
            marker=MARKERS[sorted(names).index(name) % len(MARKERS)],
            markersize=6 if strong else 4,
            zorder=3 if strong else 2,
        )
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)


def _points(report: dict[str, Any], name: str, quantity: str) -> list[tuple[int, float]]:
    rows = [row for row in report["results"] if row["case"] == name]
    if quantity != "memory":
        return [(row["n"], 1e3 * row[quantity]["median"]) for row in rows]
    peaks = [(row["n"], row.get("peak", {}).get("bytes")) for row in rows]
    return [(n, peak / 2**20) for n, peak in peaks if peak]
