"""Does an attention rank keys as softmax attention would?"""

import torch
from torch import Tensor

from lln.functional.checks import check_attention
from lln.functional.precision import no_autocast, upcast
from lln.functional.softmax import blank
from lln.instruments.matrix import AttentionMatrix, take
from lln.instruments.measures.sample import as_matrix, sample

BLOCK = 64  # rows at a time


@torch.no_grad()
def monotonicity(
    matrix: AttentionMatrix | Tensor, q: Tensor, k: Tensor, *, rows: int = 256, seed: int = 0
) -> Tensor:
    """Spearman's rank correlation of log P with q·k within a row, `(B, H)`, a mean over rows.

    1 for softmax: its weights rise with the score. A row that is constant counts as 0.

    Args:
        matrix: the attention, or P `(B, H, N_q, N_k)`.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        rows: how many are looked at, drawn without replacement.
        seed: of the draw.
    """
    matrix = as_matrix(matrix)
    check_attention(q, k, k)
    batch, heads, n_q, n_k = matrix.shape
    if (*q.shape[:3], k.shape[2]) != (batch, heads, n_q, n_k):
        raise ValueError(
            f"q and k must fit P of shape {matrix.shape}, "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    index, real = sample(matrix, rows, seed)
    k = blank(upcast(k), matrix.keep).repeat_interleave(heads // k.shape[1], dim=1)
    keep = matrix.keep[:, None, None, :]
    parts = []
    for part in index.split(BLOCK, 1):
        with no_autocast(q.device):
            scores = take(upcast(q), part) @ k.mT  # (B, H, r, N_k)
        parts.append(_correlation(_rank(scores, keep), _rank(matrix.rows(part), keep), keep))
    per_row = torch.cat(parts, -1).masked_fill(~real[:, None], 0)
    return per_row.sum(-1) / real.sum(-1)[:, None].clamp(min=1)


def _rank(x: Tensor, keep: Tensor) -> Tensor:
    """Ranks within rows; equal values share the mean of theirs. Padding comes last."""
    x = x.masked_fill(~keep, torch.inf)
    ordered = x.sort(-1).values
    first, last = (torch.searchsorted(ordered, x, right=right) for right in (False, True))
    return (first + last).to(x.dtype) / 2


def _correlation(x: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    x, y = (_centre(z, keep) for z in (x, y))
    size = x.norm(dim=-1) * y.norm(dim=-1)
    return torch.where(size > 0, (x * y).sum(-1) / size.masked_fill(size == 0, 1), 0)


def _centre(x: Tensor, keep: Tensor) -> Tensor:
    x = x.masked_fill(~keep, 0)
    mean = x.sum(-1, keepdim=True) / keep.sum(-1, keepdim=True).clamp(min=1)
    return (x - mean).masked_fill(~keep, 0)
