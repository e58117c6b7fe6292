"""What moment matching has to know about queries and keys, over real tokens only.

Of long sequences a sample is measured (see `Tokens.sample`): all of it would cost two more products
of the size of the attention itself.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.checks import check_attention
from lln.functional.precision import no_autocast, upcast
from lln.matching.tokens import Tokens

MEASURED = 1031  # tokens, of sequences that have more: all would say the same


class Statistics(NamedTuple):
    """A row per sequence, or one row for all.

    Attributes:
        query_var: `(rows, H)` variance of the elements of q.
        key_var: `(rows, H_kv)` variance of the elements of k (about the mean key, if centred).
        score_var: `(rows, H)` variance of the softmax scores, σ_sm².
        key_mean: `(rows, H_kv, D)` the mean key; 0 unless keys are centred.
        log_keys: `(rows, 1)` logarithm of the number of keys.
        correction: `(rows, H)` what `lln.matching.columns` adds to log σ̃ for the keys at hand.
    """

    query_var: Tensor
    key_var: Tensor
    score_var: Tensor
    key_mean: Tensor
    log_keys: Tensor
    correction: Tensor


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
    """Statistics per sequence and head, of a sample of its tokens, in O(D²) each.

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
    with no_autocast(q.device):
        measured = sample(q, k, key_mask, cu_seqlens)
        return statistics_of(measured, scale, exact_scores, center_keys)


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
    with no_autocast(q.device):
        queries = _pool(upcast(q), _query_mask(q, k, key_mask))
        keys = _pool(upcast(k), key_mask)
        statistics = statistics_of(Sample(queries, keys), scale, exact_scores, center_keys)
        sequences = k.shape[0] * k.shape[1]
        return statistics._replace(log_keys=(keys.length / sequences).clamp(min=1).log())


class Sample(NamedTuple):
    """What is measured of each sequence."""

    queries: Tokens
    keys: Tokens


def sample(
    q: Tensor,
    k: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    size: int = MEASURED,
    whole: int = MEASURED,
) -> Sample:
    """The queries and keys of each sequence that are measured: see `Tokens.sample`."""
    check_attention(q, k, k, key_mask=key_mask, cu_seqlens=cu_seqlens)
    return Sample(
        Tokens.sample(upcast(q), _query_mask(q, k, key_mask), cu_seqlens, size, whole),
        Tokens.sample(upcast(k), key_mask, cu_seqlens, size, whole),
    )


def _query_mask(q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor | None:
    return key_mask if q.shape[2] == k.shape[2] else None


def statistics_of(
    measured: Sample, scale: float | None, exact_scores: bool, center_keys: bool
) -> Statistics:
    """See `measure`."""
    queries, keys = measured
    dim, groups = keys.x.shape[-1], queries.x.shape[1] // keys.x.shape[1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    key_mean = keys.mean()  # (rows, H_kv, D)
    if exact_scores:
        # Divided before they are multiplied: the product of both sums would overflow first.
        second_moment, covariance = queries.second_moment(), keys.second_moment(key_mean)
        query_square, key_var = _trace(second_moment) / dim, _trace(covariance) / dim
        products = second_moment.unflatten(1, (-1, groups)) * covariance.unsqueeze(2)
        score_var = products.sum((-2, -1)).flatten(1, 2)
    else:
        query_square, key_var = queries.mean_square(), keys.mean_square(key_mean)  # (rows, H)
    query_mean = queries.mean().mean(-1)
    query_var = (query_square - query_mean.square()).clamp(min=0) * _unbiased(queries.count * dim)
    if not center_keys:
        key_var = (key_var + key_mean.var(-1, correction=0)) * _unbiased(keys.count * dim)
        key_mean = torch.zeros_like(key_mean)
    if not exact_scores:
        score_var = dim * query_var * key_var.repeat_interleave(groups, dim=1)
    return Statistics(
        query_var,
        key_var,
        scale**2 * score_var,
        key_mean,
        keys.length.clamp(min=1).log(),
        correction=torch.zeros_like(query_var),
    )


def _unbiased(count: Tensor) -> Tensor:
    """What makes a mean square about the sample's own mean an unbiased variance."""
    return count / (count - 1).clamp(min=1)


def _trace(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)


def _pool(x: Tensor, mask: Tensor | None) -> Tokens:
    """All sequences and heads as one sequence of one head."""
    if mask is not None:
        mask = mask[:, None].expand(-1, x.shape[1], -1).reshape(1, -1)
    return Tokens(x.reshape(1, 1, -1, x.shape[3]), mask, None)
