"""Which figures a page of runs has, and what they show."""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count
from typing import Any

from lln.report.curves import Curve, Values
from lln.report.results import Group
from lln.report.runs import Run

COLORS = 10
"""How many the style has for mixers."""


@dataclass(frozen=True)
class Chart:
    """A figure over training.

    Attributes:
        key: of the curves, and of the element that shows them.
        title: with the unit.
        text: what to know, as HTML.
        scale: what numbers are multiplied with.
        log: base of the ticks of a logarithmic axis; 0 for a linear one.
        smooth: whether the reader may smooth it.
        from_zero: whether the axis of the numbers begins there.
    """

    key: str
    title: str
    text: str = ""
    scale: float = 1.0
    log: int = 0
    smooth: bool = False
    from_zero: bool = False


LOSS = (
    Chart("train-loss", "Training loss", smooth=True),
    Chart("eval-loss", "Evaluation loss"),
)
METRICS = {
    "accuracy": Chart("eval-accuracy", "Accuracy, %", scale=100.0),
    "f1": Chart("eval-f1", "F1, %", scale=100.0),
}
"""Of evaluations; others are shown by their names."""
BOOKKEEPING = ("epoch", "runtime", "per_second", "seconds_per_step", "memory_bytes", "model_prep")
"""Parts of the names of what an evaluation logs beside its metrics."""
OPTIMISATION = (
    Chart("train-learning_rate", "Learning rate"),
    Chart("train-grad_norm", "Norm of the gradient", log=10, smooth=True),
    Chart(
        "train-loss_scale",
        "Loss scale",
        "The loss scale of half precision halves when gradients overflow; Figure 8b of the paper "
        "shows its inverse.",
        log=2,
    ),
)
COST = (
    Chart(
        "train-seconds_per_step", "Milliseconds per step", scale=1e3, smooth=True, from_zero=True
    ),
    Chart("train-memory_bytes", "Memory, MiB", scale=2.0**-20, from_zero=True),
)
ATTENTION = (
    Chart("temperature", "Temperature", log=10),
    Chart("entropy", "Entropy, bits"),
    Chart("gap", "Spectral gap"),
    Chart("alpha", "α"),
    Chart("beta", "β"),
)


def sections(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """Title → figures, of those that a run has something for."""
    logged = {key: None for run in runs for key in curves(run)}
    metrics = [
        METRICS.get(name, Chart(key, name.replace("_", " ").capitalize()))
        for key in logged
        if key.startswith("eval-")
        and (name := key.removeprefix("eval-")) != "loss"
        and not any(part in name for part in BOOKKEEPING)
    ]
    every: dict[str, Sequence[Chart]] = {
        "Loss and metrics": [*LOSS, *metrics],
        "Optimisation": OPTIMISATION,
        "Time and memory": COST,
    }
    kept = {title: [chart for chart in of if chart.key in logged] for title, of in every.items()}
    return {title: of for title, of in kept.items() if of}


def attention_charts(runs: Sequence[Run]) -> list[Chart]:
    """The figures of attention that a run has something for."""
    return [chart for chart in ATTENTION if any(chart.key in run.attention for run in runs)]


def curves(run: Run) -> dict[str, Curve]:
    """All but attention, by the keys of charts."""
    train = {f"train-{name}": curve for name, curve in run.train.items()}
    return train | {f"eval-{name}": curve for name, curve in run.evaluation.items()}


def chart_data(groups: Sequence[Group]) -> dict[str, Any]:
    """What the script of the page draws, as JSON."""
    runs = [run for group in groups for run in group.runs]
    plain = [
        asdict(chart) | {"curves": [_drawn(curves(run).get(chart.key), chart) for run in runs]}
        for chart in chain(*sections(runs).values())
    ]
    attention = [
        asdict(chart) | {"curves": [_layers(run, chart) for run in runs]}
        for chart in attention_charts(runs)
    ]
    return {
        "groups": _legend(groups),
        "runs": [
            {"title": group.run_title(run), "group": place}
            for place, group in enumerate(groups)
            for run in group.runs
        ],
        "layers": {layer: name for run in runs for layer, name in run.layers.items()},
        "charts": plain,
        "attention": attention,
    }


def _layers(run: Run, chart: Chart) -> dict[str, Any]:
    found = run.attention.get(chart.key, {})
    return {layer: _drawn(curve, chart) for layer, curve in found.items()}


def _drawn(curve: Curve | None, chart: Chart) -> dict[str, Any] | None:
    """A curve in the unit of its chart, thinned and rounded to what can be seen."""
    if curve is None:
        return None
    thin = curve.thinned()
    drawn = {
        "steps": thin.steps,
        "seconds": [round(second, 2) for second in thin.seconds],
        "values": _rounded(thin.values, chart.scale),
    }
    if thin.low is not None and thin.high is not None:
        drawn["low"] = _rounded(thin.low, chart.scale)
        drawn["high"] = _rounded(thin.high, chart.scale)
    return drawn


def _rounded(values: Values, scale: float) -> Values:
    return [None if value is None else float(f"{value * scale:.6g}") for value in values]


def _legend(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A colour for each label, the same on every page unless two labels claim it.

    Experiments differ by the dashes of their lines, as do more labels than there are colours.
    """
    slots: dict[str, int] = {}
    for label in sorted({group.runs[0].label for group in groups}):
        wanted = zlib.crc32(label.encode())
        turns = (COLORS * turn + (wanted + i) % COLORS for turn in count() for i in range(COLORS))
        slots[label] = next(slot for slot in turns if slot not in slots.values())
    names = list(dict.fromkeys(group.runs[0].name for group in groups))
    return [
        {
            "title": group.title,
            "color": slots[run.label] % COLORS,
            "dash": slots[run.label] // COLORS + names.index(run.name),
        }
        for group in groups
        for run in group.runs[:1]
    ]
