"""Figure 6: the logarithm of a sum of d log-normal variables, measured and predicted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lln.instruments import fenton

CHUNK = 1 << 22  # normal variables at a time
BROAD = 4.0  # σ² from which growth is taken as linear


@dataclass(frozen=True)
class Sums:
    """Independent sums Σ exp(σ z) of d terms, z normal.

    Attributes:
        variances: σ², the horizontal axis.
        counts: d; the paper does not name its own.
        samples: of each sum. The standard error of a variance is √(2 / samples) of it, 0.14 % at a
            million.
        seed: of the normal variables, which are the same for every σ².
    """

    variances: Sequence[float]
    counts: Sequence[int] = (16, 32, 64, 128, 256)
    samples: int = 1_000_000
    seed: int = 0

    @property
    def steps(self) -> int:
        """How often a measurement calls `advance`."""
        return sum(len(range(0, self.samples, CHUNK // count)) for count in self.counts)


def moderate(setting: Sums, advance: Callable[[], object]) -> dict[str, Any]:
    """Figure 6a: the variance of the logarithm against Fenton's (Eq. 28)."""
    results, summary = [], []
    variances = torch.tensor(setting.variances, dtype=torch.float64)
    for count in setting.counts:
        measured = _variance_of_log(setting, count, advance).tolist()
        predicted = fenton(variances, count).variance.tolist()
        percent = [100 * (m / p - 1) for m, p in zip(measured, predicted, strict=True)]
        results.append(
            {"count": count, "measured": measured, "predicted": predicted, "percent": percent}
        )
        worst = max(percent, key=abs)
        where = setting.variances[percent.index(worst)]
        summary.append(f"d = {count}: furthest from Fenton at σ² = {where:g}, by {worst:+.1f} %")
    return {"results": results, "summary": summary}


def broad(setting: Sums, advance: Callable[[], object]) -> dict[str, Any]:
    """Figure 6b: the same variance where it grows linearly, as a σ² + b (Eq. 30)."""
    results, summary = [], []
    variances = torch.tensor(setting.variances, dtype=torch.float64)
    for count in setting.counts:
        measured = _variance_of_log(setting, count, advance)
        chosen = variances >= BROAD
        a, b, r2 = line(variances[chosen], measured[chosen])
        results.append({"count": count, "measured": measured.tolist(), "a": a, "b": b, "r2": r2})
        summary.append(
            f"d = {count}: {a:.3f} σ² {b:+.3f} from σ² = {BROAD:g}, R² = {r2:.4f}; R² over the "
            f"whole range {line(variances, measured)[2]:.4f}"
        )
    return {"results": results, "summary": summary}


def line(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Least squares: slope, intercept, and the share R² of the variance of y that they explain."""
    dx, dy = x - x.mean(), y - y.mean()
    slope = (dx @ dy) / (dx @ dx)
    rest = dy - slope * dx
    r2 = 1 - (rest @ rest) / (dy @ dy)
    return float(slope), float(y.mean() - slope * x.mean()), float(r2)


def _variance_of_log(setting: Sums, count: int, advance: Callable[[], object]) -> Tensor:
    """Of log Σ exp(σ z), one for each σ²."""
    generator = torch.Generator().manual_seed(setting.seed)
    logs = torch.empty(len(setting.variances), setting.samples)
    for start in range(0, setting.samples, CHUNK // count):
        stop = min(start + CHUNK // count, setting.samples)
        z = torch.randn(stop - start, count, generator=generator)
        for log, variance in zip(logs, setting.variances, strict=True):
            log[start:stop] = (z * variance**0.5).logsumexp(1)
        advance()
    return logs.double().var(1)
