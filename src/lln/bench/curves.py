"""Figures of costs: over the sequence length with the fitted powers of N, or side by side."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lln.bench.figure import MUTED, RC, length_axis, plain_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EMPHASISED = {
    "softmax": "#000000",
    "sdpa": "#000000",
    "lln": "#0072B2",
    "lln_diag": "#D55E00",
    "products": "#6B6B6B",
}
MARKERS = "osD^v<>pPX*h"


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: what is measured.
        curves: points (N, cost) by name.
        powers: of N, by name; None where there are too few points.
    """

    title: str
    curves: Mapping[str, Sequence[tuple[int, float]]]
    powers: Mapping[str, float | None]


def draw(panels: Sequence[Panel], caption: str, path: Path) -> None:
    """Draws the panels side by side into `path`, the most costly curve first."""
    with _figure(len(panels), f"{caption}; in brackets: the fitted power of N", path) as grid:
        for axes, panel in zip(grid, panels, strict=True):
            _draw_curves(axes, panel)


def draw_bars(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    groups: Sequence[str],
    caption: str,
    path: Path,
) -> None:
    """Draws costs that have no common axis into `path`, as bars.

    Args:
        panels: by title, the costs of each name in each group; NaN leaves a bar out.
        groups: what stands below the bars.
        caption: below the figure.
        path: a PNG file.
    """
    with _figure(len(panels), caption, path) as grid:
        for axes, (title, costs) in zip(grid, panels.items(), strict=True):
            colours, width = _colours(list(costs)), 0.8 / len(costs)
            for place, (name, values) in enumerate(costs.items()):
                x = [group - 0.4 + (place + 0.5) * width for group in range(len(groups))]
                axes.bar(x, values, width, label=name, color=colours[name])
            axes.set_xticks(range(len(groups)), groups)
            axes.set_title(title)
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)


@contextmanager
def _figure(panels: int, caption: str, path: Path) -> Iterator[Sequence["Axes"]]:
    """Axes side by side, saved when they are drawn."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(RC):
        figure, grid = plt.subplots(
            1, panels, figsize=(6.5 * panels, 6.5), layout="constrained", squeeze=False
        )
        yield grid[0]
        figure.supxlabel(caption, fontsize=8, color=MUTED)
        figure.savefig(path, dpi=140)
        plt.close(figure)


def _colours(names: Sequence[str]) -> dict[str, Any]:
    import matplotlib

    maps: Any = matplotlib.colormaps
    others = [name for name in names if name not in EMPHASISED]
    found = dict(zip(others, cycle((*maps["tab20"].colors, *maps["tab20b"].colors))))
    return {name: EMPHASISED.get(name, found.get(name)) for name in names}


def _draw_curves(axes: "Axes", panel: Panel) -> None:
    names = sorted(name for name, points in panel.curves.items() if points)
    colours = _colours(names)
    for name in sorted(names, key=lambda name: panel.curves[name][-1][1], reverse=True):
        power = panel.powers.get(name)
        strong = name in EMPHASISED
        axes.plot(
            *zip(*panel.curves[name], strict=True),
            label=name if power is None else f"{name} ({power:.2f})",
            color=colours[name],
            linewidth=2.4 if strong else 1.1,
            marker=MARKERS[names.index(name) % len(MARKERS)],
            markersize=6 if strong else 4,
            zorder=3 if strong else 2,
        )
    axes.set_title(panel.title)
    axes.set_xlabel("sequence length N")
    if names:
        plain_log(axes)
        length_axis(axes, sorted({n for name in names for n, _ in panel.curves[name]}))
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
