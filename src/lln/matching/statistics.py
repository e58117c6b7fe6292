"""What moment matching has to know about queries and keys, over real tokens only.

Of long sequences a sample is measured (see `tokens`): all of it would cost two more products of the
size of the attention itself.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.checks import check_attention
from lln.functional.precision import no_autocast, upcast
from lln.matching.tokens import Tokens


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
    queries: Tokens | None = None,
) -> Statistics:
    """Statistics per sequence and head, of at most `SAMPLE` tokens, in O(D²) each.

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
        queries: what `sample_queries` takes of q, if it has been taken.
    """
    check_attention(q, k, k, key_mask=key_mask, cu_seqlens=cu_seqlens)
    with no_autocast(q.device):
        queries = queries or sample_queries(q, k, key_mask, cu_seqlens)
        keys = Tokens.sample(upcast(k), key_mask, cu_seqlens)
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
    with no_autocast(q.device):
        queries = _pool(upcast(q), _query_mask(q, k, key_mask))
        keys = _pool(upcast(k), key_mask)
        statistics = _statistics(queries, keys, scale, exact_scores, center_keys)
        sequences = k.shape[0] * k.shape[1]
        return statistics._replace(log_keys=(keys.length / sequences).clamp(min=1).log())


@torch.no_grad()
def sample_queries(
    q: Tensor, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None
) -> Tokens:
    """At most `SAMPLE` queries of each sequence, as `measure` and `column_entropy` see them."""
    return Tokens.sample(upcast(q), _query_mask(q, k, key_mask), cu_seqlens)


def _query_mask(q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor | None:
    return key_mask if q.shape[2] == k.shape[2] else None


def _statistics(
    queries: Tokens, keys: Tokens, scale: float | None, exact_scores: bool, center_keys: bool
) -> Statistics:
    dim, groups = keys.x.shape[-1], queries.x.shape[1] // keys.x.shape[1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    numbers_q, numbers_k = queries.count * dim, keys.count * dim  # (rows, 1)
    key_mean = keys.mean()  # (rows, H_kv, D)
    keys.subtract(key_mean)
    if exact_scores:
        # Divided before they are multiplied: the product of both sums would overflow first.
        second_moment, covariance = queries.second_moment(), keys.second_moment()
        query_square, key_var = _trace(second_moment) / dim, _trace(covariance) / dim
        products = second_moment.unflatten(1, (-1, groups)) * covariance.unsqueeze(2)
        score_var = products.sum((-2, -1)).flatten(1, 2)
    else:
        query_square, key_var = queries.mean_square(), keys.mean_square()  # (rows, H)
    query_mean = queries.mean().mean(-1)
    query_var = (query_square - query_mean.square()).clamp(min=0) * _unbiased(numbers_q)
    if not center_keys:
        key_var = (key_var + key_mean.var(-1, correction=0)) * _unbiased(numbers_k)
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
