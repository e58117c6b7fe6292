"""Accuracy against fixed α = β, beside what moment matching finds: the paper's Figure 10a.

Runs of mixers such as `lln_diag+matching=2` hold α = β fixed; a run of the same mixer that matches
moments records which α and β it found while it was trained.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from lln.bench.figure import MUTED, RC, Style
from lln.files import write, write_json
from lln.report.curves import ALL, number
from lln.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Report = dict[str, Any]

SCORES = ("test_accuracy", "accuracy")
"""The first that all runs have is shown."""
STYLES = (
    Style(color="#D55E00", marker="^"),
    Style(color="#0072B2", marker="o"),
    Style(color="#009E73", marker="s"),
)
LETTERS = {"alpha": ("α", "--"), "beta": ("β", ":")}


def sweep(runs: Sequence[Run]) -> Report:
    """Scores by α = β, and the α and β of moment matching.

    Args:
        runs: of one experiment; those of mixers without α and β are left out.
    """
    names = sorted({run.name for run in runs})
    if len(names) > 1:
        raise ValueError(f"these are runs of several experiments, give one of {', '.join(names)}")
    done = [run for run in runs if run.final]
    score = next((key for key in SCORES if done and all(key in run.final for run in done)), None)
    fixed = [run for run in done if _fixed(run) is not None]
    if score is None or not fixed:
        raise ValueError(
            "there is no finished run with a fixed α = β: train mixers such as lln_diag+matching=2"
        )
    curves = []
    for mixer in dict.fromkeys(_mixer(run) for run in fixed):
        values = sorted({_fixed(run) or 0.0 for run in fixed if _mixer(run) == mixer})
        curves.append(
            {
                "mixer": mixer,
                "fixed": [
                    {
                        "value": value,
                        "scores": [
                            run.final[score]
                            for run in fixed
                            if _mixer(run) == mixer and _fixed(run) == value
                        ],
                    }
                    for value in values
                ],
                "matched": [
                    {
                        "label": run.label,
                        "seed": run.seed,
                        "score": run.final[score],
                        **{name: _found(run, name) for name in LETTERS},
                    }
                    for run in done
                    if _fixed(run) is None and _mixer(run) == mixer
                ],
            }
        )
    return {"experiment": names[0], "score": score, "mixers": curves}


def save(report: Report, folder: Path) -> None:
    """Writes `sweep.json` and `sweep.png`."""
    write_json(folder / "sweep.json", report)
    write(folder / "sweep.png", lambda file: draw(report, file))


def draw(report: Report, path: Path) -> None:
    """Draws a report into `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(RC):
        figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained", dpi=160)
        for place, curve in enumerate(report["mixers"]):
            _draw(axes, curve, STYLES[place % len(STYLES)])
        axes.margins(y=0.1)
        axes.set_xlabel("α = β, fixed")
        axes.set_title(f"{report['score'].replace('_', ' ').capitalize()}, %")
        axes.legend()
        figure.supxlabel(report["experiment"], fontsize=8, color=MUTED)
        figure.savefig(path, format="png")
        plt.close(figure)


def _draw(axes: "Axes", curve: Report, style: Style) -> None:
    points = curve["fixed"]
    axes.errorbar(
        [point["value"] for point in points],
        [100 * fmean(point["scores"]) for point in points],
        yerr=[_spread(point["scores"]) for point in points],
        label=f"{curve['mixer']}, fixed",
        capsize=3,
        **style,
    )
    color = style["color"]
    if curve["matched"]:
        axes.axhline(
            100 * fmean(run["score"] for run in curve["matched"]),
            color=color,
            linewidth=1,
            label=f"{curve['mixer']}, moment matching",
        )
    for name, (letter, line) in LETTERS.items():
        found = [run[name] for run in curve["matched"] if run[name]]
        if found:
            mean = fmean(each["mean"] for each in found)
            low = min(each["low"] for each in found)
            high = max(each["high"] for each in found)
            axes.axvspan(low, high, color=color, alpha=0.12, linewidth=0)
            label = f"its {letter}: {mean:.2f}, over training {low:.2f} to {high:.2f}"
            axes.axvline(mean, color=color, linestyle=line, linewidth=1.2, label=label)


def _spread(scores: Sequence[float]) -> float:
    return 100 * stdev(scores) if len(scores) > 1 else 0.0


def _fixed(run: Run) -> float | None:
    return number(run.config.get("options", {}).get("matching"))


def _mixer(run: Run) -> str:
    """The label without what it says of matching, by which runs are compared."""
    return "+".join(part for part in run.label.split("+") if not part.startswith("matching="))


def _found(run: Run, name: str) -> dict[str, float] | None:
    """Mean, lowest and highest of the mean over all heads, over training."""
    curve = run.attention.get(name, {}).get(ALL)
    values = [value for value in curve.values if value is not None] if curve else []
    if not values:
        return None
    return {"mean": fmean(values), "low": min(values), "high": max(values)}
