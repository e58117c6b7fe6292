"""Which rows of P a measure looks at, and means over them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.checks import check_positive
from lln.instruments.matrix import AttentionMatrix, Dense


class Sample(NamedTuple):
    """Rows of P, as many for each sequence as the longest one has.

    Attributes:
        places: `(B, R)` long; 0 where there is none.
        real: `(B, R)` bool: there is one.
    """

    places: Tensor
    real: Tensor


def as_matrix(p: AttentionMatrix | Tensor) -> AttentionMatrix:
    """P itself is a matrix too."""
    return Dense(p) if isinstance(p, Tensor) else p


def sample(matrix: AttentionMatrix, rows: int | None, seed: int) -> Sample:
    """Draws rows of real queries without replacement, or takes all.

    A sequence gets the rows that it would get alone, without padding. The draw is one for all
    heads.

    Args:
        matrix: the attention.
        rows: how many; None = all, and in order.
        seed: of the draw.
    """
    if rows is not None:
        check_positive("rows", rows)
    drawn = []
    for real in matrix.queries.cpu():
        places = real.nonzero().squeeze(1)
        if rows is not None and rows < len(places):
            generator = torch.Generator().manual_seed(seed)
            places = places[torch.randperm(len(places), generator=generator)[:rows]]
        drawn.append(places)
    longest = max(map(len, drawn), default=0)
    index = torch.zeros(len(drawn), longest, dtype=torch.long)
    taken = torch.zeros(len(drawn), longest, dtype=torch.bool)
    for i, places in enumerate(drawn):
        index[i, : len(places)], taken[i, : len(places)] = places, True
    return Sample(index.to(matrix.device), taken.to(matrix.device))


def over_rows(
    matrix: AttentionMatrix,
    measure: Callable[[Tensor, Tensor], Tensor],
    rows: int | None,
    block: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean of a measure over rows, its standard error, and the measure itself.

    Args:
        matrix: the attention.
        measure: maps rows of P `(B, H, r, N_k)` and the real keys `(B, N_k)` to `(B, H, r)`.
        rows: how many; None = all.
        block: rows at a time.
        seed: of the draw.

    Returns:
        `(B, H)`, `(B, H)`, `(B, H, R)` with 0 where there is no row, and `(B, R)` where there is.
    """
    check_positive("block", block)
    index, real = sample(matrix, rows, seed)
    parts = [measure(matrix.rows(part), matrix.keep) for part in index.split(block, 1)]
    per_row = torch.cat(parts, -1).masked_fill(~real[:, None], 0)  # (B, H, R)
    count = real.sum(-1)[:, None].to(per_row.dtype)  # (B, 1)
    mean = per_row.sum(-1) / count.clamp(min=1)
    squares = (per_row - mean[..., None]).masked_fill(~real[:, None], 0).square().sum(-1)
    # Without replacement: the error vanishes as the sample becomes the whole.
    missing = 1 - count / matrix.queries.sum(-1)[:, None].clamp(min=1)
    error = (missing * squares / (count - 1).clamp(min=1) / count.clamp(min=1)).sqrt()
    return mean, error, per_row, real
