"""Means over rows of P: entropy (Eq. 7) and variance (Eq. 21)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.matrix import AttentionMatrix, FactoredMatrix
from lln.instruments.measures.result import Result
from lln.instruments.measures.sample import as_matrix, over_rows


@dataclass(frozen=True)
class Entropy(Result):
    """How evenly rows attend, in bits: 0 for one key, log2 N for all alike.

    Attributes:
        bits: `(B, H)` mean over rows (Eq. 7).
        standard_error: `(B, H)` of `bits` as an estimate for all rows; 0 if all were measured.
        per_row: `(B, H, R)`, 0 where there is no row.
        real: `(B, R)` bool: there is a row.
    """

    bits: Tensor
    standard_error: Tensor
    per_row: Tensor
    real: Tensor


@dataclass(frozen=True)
class Variance(Result):
    """Variance of the entries of a row about their mean 1/N (Eq. 21).

    Attributes:
        mean: `(B, H)` over rows.
        standard_error: `(B, H)` of `mean` as an estimate for all rows; 0 if all were measured.
        per_row: `(B, H, R)`, 0 where there is no row.
        real: `(B, R)` bool: there is a row.
    """

    mean: Tensor
    standard_error: Tensor
    per_row: Tensor
    real: Tensor


@torch.no_grad()
def entropy(
    matrix: AttentionMatrix | Tensor, *, rows: int | None = None, block: int = 256, seed: int = 0
) -> Entropy:
    """Entropy of the rows of P (Eq. 7), with 0 · log 0 = 0, in O(block · N) memory.

    It is NaN for a row with negative weights, which has none.

    Args:
        matrix: the attention, or P `(B, H, N_q, N_k)`.
        rows: how many, drawn without replacement, the same in every head; None = all.
        block: rows at a time; changes nothing but speed and memory.
        seed: of the draw.
    """
    return Entropy(*over_rows(as_matrix(matrix), _bits, rows, block, seed))


@torch.no_grad()
def variance(
    matrix: AttentionMatrix | Tensor, *, rows: int | None = None, block: int = 256, seed: int = 0
) -> Variance:
    """Variance within the rows of P over the real keys (Eq. 21); arguments as in `entropy`."""
    return Variance(*over_rows(as_matrix(matrix), _spread, rows, block, seed))


@torch.no_grad()
def entropy_floor(matrix: FactoredMatrix) -> Tensor:
    """The entropy in bits of the sharpest column of B, `(B, H)`, in O(N F).

    Rows of P = A Bᵀ are mixtures of the columns of B, and entropy is concave: no row can have less.
    0 for a sequence without keys.
    """
    columns: Tensor = torch.special.entr(matrix.b).sum(-2) / math.log(2)  # (B, H, F)
    columns = columns.masked_fill((matrix.b == 0).all(-2), torch.inf)
    floor = columns.amin(-1)
    return floor.masked_fill(floor == torch.inf, 0)


def _bits(p: Tensor, keep: Tensor) -> Tensor:
    bits: Tensor = torch.special.entr(p).sum(-1) / math.log(2)
    return bits.masked_fill(bits == -torch.inf, torch.nan)


def _spread(p: Tensor, keep: Tensor) -> Tensor:
    keep = keep[:, None, None, :]
    count = keep.sum(-1, keepdim=True).clamp(min=1)
    centred = (p - p.sum(-1, keepdim=True) / count).masked_fill(~keep, 0)
    return centred.square().sum(-1) / count.squeeze(-1)
