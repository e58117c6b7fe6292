"""Curves over training, from the rows of a run's metrics."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeAlias

MEASURES = ("temperature", "entropy", "gap", "alpha", "beta")
"""What is recorded of every head, where it exists."""
ALL = "all"
"""Stands for all layers where a layer is named."""
MOST = 2000
"""Points of a curve beyond which it is thinned."""

Row: TypeAlias = dict[str, Any]
Values: TypeAlias = list[float | None]


@dataclass(frozen=True)
class Curve:
    """One number over training, None where it is missing or not finite.

    Attributes:
        steps: of the optimizer.
        seconds: since the start.
        values: the number, a mean where it has a range.
        low: the lowest of what `values` averages; None for a plain number.
        high: the highest.
    """

    steps: list[int]
    seconds: list[float]
    values: Values
    low: Values | None = None
    high: Values | None = None

    def thinned(self, most: int = MOST) -> "Curve":
        """At most about `most` points: of each stretch the extremes, so that no spike is lost."""
        if len(self.values) <= most:
            return self
        stretches = most // 2 - 1
        edges = [i * len(self.values) // stretches for i in range(stretches + 1)]
        places = {0, len(self.values) - 1}
        for start, stop in pairwise(edges):
            known = [(v, i) for i in range(start, stop) if (v := self.values[i]) is not None]
            places |= {min(known)[1], max(known)[1]} if known else {start}
        kept = sorted(places)
        return Curve(
            steps=[self.steps[i] for i in kept],
            seconds=[self.seconds[i] for i in kept],
            values=[self.values[i] for i in kept],
            low=self.low and [self.low[i] for i in kept],
            high=self.high and [self.high[i] for i in kept],
        )


def number(value: object) -> float | None:
    """`value` if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def plain_curves(rows: list[Row]) -> dict[str, Curve]:
    """A curve for each column that holds numbers."""
    columns = {name: None for row in rows for name in row if name not in ("step", "seconds")}
    curves = {}
    for name in columns:
        having = [row for row in rows if name in row]
        curve = _curve(having, [number(row[name]) for row in having])
        if any(value is not None for value in curve.values):
            curves[name] = curve
    return curves


def attention_curves(rows: list[Row]) -> dict[str, dict[str, Curve]]:
    """Measure → layer, or all of them → mean and range over the heads."""
    curves: dict[str, dict[str, Curve]] = {}
    for measure in MEASURES:
        columns: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in rows])
        for i, row in enumerate(rows):
            for head in row["rows"]:
                value = number(head.get(measure))
                if value is not None:
                    for layer in (ALL, str(head["layer"])):
                        columns[layer][i].append(value)
        if columns:
            curves[measure] = {
                layer: _curve(
                    rows,
                    [fmean(values) if values else None for values in column],
                    [min(values, default=None) for values in column],
                    [max(values, default=None) for values in column],
                )
                for layer, column in columns.items()
            }
    return curves


def layer_names(rows: Iterable[Row]) -> dict[str, str]:
    """Number → name of each layer whose attention was measured."""
    heads = (head for row in rows for head in row["rows"])
    names = {int(head["layer"]): str(head.get("name", "")) for head in heads}
    return {str(layer): name for layer, name in sorted(names.items())}


def _curve(
    rows: list[Row], values: Values, low: Values | None = None, high: Values | None = None
) -> Curve:
    steps = [row["step"] for row in rows]
    return Curve(steps, [row["seconds"] for row in rows], values, low, high)
