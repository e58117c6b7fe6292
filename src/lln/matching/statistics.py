"""What moment matching has to know about queries and keys, over real tokens only."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.checks import check_attention
from lln.functional.precision import no_autocast, upcast
from lln.functional.slots import assign

CHUNK = 64  # packed sequences are summed in chunks of this many tokens


class Statistics(NamedTuple):
    """A row per sequence, or one row for all.

    Attributes:
        query_var: `(rows, H)` variance of the elements of q.
        key_var: `(rows, H_kv)` variance of the elements of k (about the mean key, if centred).
        score_var: `(rows, H)` variance of the softmax scores, σ_sm².
        key_mean: `(rows, H_kv, D)` the mean key; 0 unless keys are centred.
        log_keys: `(rows, 1)` logarithm of the number of keys.
    """

    query_var: Tensor
    key_var: Tensor
    score_var: Tensor
    key_mean: Tensor
    log_keys: Tensor


@torch.no_grad()
def measure(
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    exact_scores: bool = True,
    center_keys: bool = True,
) -> Statistics:
    """Statistics per sequence and head, in O(N · D²).

    In self-attention (N_q = N_k) `key_mask` holds for the queries too.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        key_mask: `(B, N_k)` bool, True = keep.
        cu_seqlens: `(S + 1,)` bounds of packed sequences; then there is a row per packed sequence.
        scale: of the softmax scores, 1/√D by default.
        exact_scores: the mean within-row variance of the scores, scale² · tr(QᵀQ/N · cov(k)),
            which is all that softmax sees; otherwise the paper's σ_q² σ_k², for independent inputs.
        center_keys: measure keys about their mean, and report it.
    """
    check_attention(q, k, k, key_mask=key_mask, cu_seqlens=cu_seqlens)
    with no_autocast(q.device):
        queries = _Tokens(upcast(q), key_mask if q.shape[2] == k.shape[2] else None, cu_seqlens)
        keys = _Tokens(upcast(k), key_mask, cu_seqlens)
        return _statistics(queries, keys, scale, exact_scores, center_keys)


@torch.no_grad()
def measure_batch(
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    scale: float | None = None,
    exact_scores: bool = False,
    center_keys: bool = False,
) -> Statistics:
    """One row for a whole batch and all its heads, as in the authors' code."""
    check_attention(q, k, k, key_mask=key_mask)
    query_mask = key_mask if q.shape[2] == k.shape[2] else None
    with no_autocast(q.device):
        queries, keys = _pool(upcast(q), query_mask), _pool(upcast(k), key_mask)
        statistics = _statistics(queries, keys, scale, exact_scores, center_keys)
        sequences = k.shape[0] * k.shape[1]
        return statistics._replace(log_keys=(keys.count / sequences).clamp(min=1).log())


def _statistics(
    queries: "_Tokens", keys: "_Tokens", scale: float | None, exact_scores: bool, center_keys: bool
) -> Statistics:
    dim, groups = keys.x.shape[-1], queries.x.shape[1] // keys.x.shape[1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    query_mean, key_mean = queries.mean(), keys.mean()  # (rows, H, D)
    keys.subtract(key_mean)
    if exact_scores:
        query_gram, key_gram = queries.gram(), keys.gram()  # (rows, H, D, D)
        query_squares, key_squares = _trace(query_gram), _trace(key_gram)
    else:
        query_squares, key_squares = queries.squares(), keys.squares()  # (rows, H)
    query_squares = query_squares - queries.count * dim * query_mean.mean(-1).square()
    query_var = query_squares.clamp(min=0) / (queries.count * dim - 1).clamp(min=1)
    if center_keys:
        key_var = key_squares / (keys.count * dim).clamp(min=1)
    else:
        off_centre = keys.count * dim * key_mean.var(-1, correction=0)
        key_var = (key_squares + off_centre) / (keys.count * dim - 1).clamp(min=1)
        key_mean = torch.zeros_like(key_mean)
    if exact_scores:
        # Divided before they are multiplied: the product of both sums would overflow first.
        second_moment = query_gram / queries.count.clamp(min=1)[..., None, None]
        covariance = key_gram / keys.count.clamp(min=1)[..., None, None]
        products = second_moment.unflatten(1, (-1, groups)) * covariance.unsqueeze(2)
        score_var = products.sum((-2, -1)).flatten(1, 2)
    else:
        score_var = dim * query_var * key_var.repeat_interleave(groups, dim=1)
    log_keys = keys.count.clamp(min=1).log()
    return Statistics(query_var, key_var, scale**2 * score_var, key_mean, log_keys)


def _trace(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)


def _pool(x: Tensor, mask: Tensor | None) -> "_Tokens":
    """All sequences and heads as one sequence of one head."""
    if mask is not None:
        mask = mask[:, None].expand(-1, x.shape[1], -1).reshape(1, -1)
    return _Tokens(x.reshape(1, 1, -1, x.shape[3]), mask, None)


class _Tokens:
    """Real tokens in chunks `(B, H, M, c, D)`, zeros elsewhere, and sums over each sequence.

    A padded batch has one chunk per row; packed sequences have several each.
    """

    def __init__(self, x: Tensor, keep: Tensor | None, cu_seqlens: Tensor | None) -> None:
        self._chunk_row: Tensor | None = None
        self.keep: Tensor | None = None
        if cu_seqlens is not None:
            if keep is None:
                keep = torch.ones(1, x.shape[2], dtype=torch.bool, device=x.device)
            slots, chunk_row = assign(keep, CHUNK, cu_seqlens)
            self._chunk_row, self._rows = chunk_row[0], cu_seqlens.shape[0] - 1
            self.x, self.keep = slots.split(x), slots.filled[:, None, :, :, None]
            self.count = self.per_row(self.keep.sum((-2, -1)).to(x.dtype))  # (rows, 1)
        elif keep is not None:
            self.keep = keep[:, None, None, :, None]
            self.x = x.unsqueeze(2).masked_fill(~self.keep, 0)
            self.count = keep.sum(1, keepdim=True).to(x.dtype)
        else:
            self.x = x.unsqueeze(2)
            self.count = x.new_full((x.shape[0], 1), x.shape[2])

    def per_row(self, chunks: Tensor) -> Tensor:
        """Sums `(B, H, M, ...)` over the chunks of each sequence: `(rows, H, ...)`."""
        if self._chunk_row is None:
            return chunks.squeeze(2)
        spare = 1  # a row for chunks that belong to no sequence
        total = chunks.new_zeros(self._rows + spare, chunks.shape[1], *chunks.shape[3:])
        return total.index_add(0, self._chunk_row, chunks[0].transpose(0, 1))[: self._rows]

    def subtract(self, value: Tensor) -> None:
        """Takes `(rows, H, D)` off every token."""
        if self._chunk_row is not None:
            value = value[self._chunk_row.clamp(max=self._rows - 1)].transpose(0, 1)[None]
        else:
            value = value.unsqueeze(2)
        self.x = self.x - value.unsqueeze(3)
        if self.keep is not None:
            self.x = self.x.masked_fill(~self.keep, 0)

    def mean(self) -> Tensor:
        """The mean token, `(rows, H, D)`."""
        return self.per_row(self.x.sum(-2)) / self.count.clamp(min=1).unsqueeze(-1)

    def squares(self) -> Tensor:
        """Sum of squares, `(rows, H)`."""
        return self.per_row(torch.linalg.vector_norm(self.x, dim=(-2, -1)).square())

    def gram(self) -> Tensor:
        """Σ x xᵀ, `(rows, H, D, D)`."""
        return self.per_row(self.x.mT @ self.x)
