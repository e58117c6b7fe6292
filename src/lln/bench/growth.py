"""How cost grows with the sequence length, and from which length on one cost is below another."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The exponent p of the power law c · xᵖ that fits the points; None for fewer than two."""
    if len(points) < 2:
        return None
    x, y = torch.tensor(points, dtype=torch.float64).log().T
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def crossover(ratios: Mapping[int, float]) -> str | None:
    """The length from which on a cost is below another, as far as was measured.

    Between two lengths the ratio is taken as a power law: a straight line where both axes are
    logarithmic.

    Args:
        ratios: the one cost by the other, for each length.

    Returns:
        Such as `212`, `< 512` if it was below at every length, `> 4096` if not even at the last;
        None for fewer than two lengths.
    """
    if len(ratios) < 2:
        return None
    lengths = sorted(ratios)
    logs = {n: math.log(ratios[n]) for n in lengths}
    if logs[lengths[-1]] >= 0:
        return f"> {lengths[-1]}"
    for low, high in reversed(list(pairwise(lengths))):
        if logs[low] >= 0:
            share = logs[low] / (logs[low] - logs[high])
            return f"{low * (high / low) ** share:.0f}"
    return f"< {lengths[0]}"
