"""The picture of `lln bench matching`: entropy, spectral gap and variance over σ."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

# Okabe and Ito's colours, told apart by colour-blind readers too.
STYLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "#000000", "linewidth": 3, "alpha": 0.35},
    "entropy": {"color": "#0072B2", "marker": "o"},
    "variance": {"color": "#009E73", "marker": "s"},
    "paper": {"color": "#D55E00", "marker": "^"},
}
PANELS = {"entropy": "entropy, bits", "gap": "spectral gap γ", "variance": "variance of log P"}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws one row of panels per head dimension, at the middle length."""
    setting = report["setting"]
    n = setting["n"][len(setting["n"]) // 2]
    dims = setting["head_dims"]
    figure, grid = plt.subplots(
        len(dims),
        len(PANELS),
        figsize=(11, 3 * len(dims)),
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for line, head_dim in zip(grid, dims, strict=True):
        rows = [r for r in report["results"] if r["n"] == n and r["head_dim"] == head_dim]
        for axes, (measure, label) in zip(line, PANELS.items(), strict=True):
            for name, style in STYLES.items():
                text = name if name == "softmax" else f"LLN, {name}"
                values = [r[name][measure] for r in rows]
                axes.plot([r["sigma"] for r in rows], values, label=text, markersize=4, **style)
            axes.set_ylabel(label)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            if measure == "variance":
                axes.set_yscale("log")
        line[0].set_title(f"D = {head_dim}, N = {n}", loc="left", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("σ of q and k")
    grid[0][0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
