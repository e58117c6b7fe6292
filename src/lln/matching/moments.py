"""From queries and keys to α and β, as a `Matching` says."""

from torch import Tensor

from lln.functional.checks import check_attention
from lln.matching.columns import correct
from lln.matching.statistics import Statistics, measure, measure_batch, sample_queries
from lln.matching.width import (
    Curve,
    Factors,
    Matching,
    constant_factors,
    curve,
    factors_of,
    resolve,
)


def moments(
    matching: Matching,
    curve: Curve,
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Statistics, Factors]:
    """The statistics of q and k that `matching` asks for, and α and β by them."""
    exact = matching.scores == "exact"
    if matching.statistics == "batch":
        if cu_seqlens is not None:
            raise ValueError("matching.statistics='batch' takes padded batches, not cu_seqlens")
        statistics = measure_batch(
            q,
            k,
            key_mask=key_mask,
            scale=scale,
            exact_scores=exact,
            center_keys=matching.center_keys,
        )
        return statistics, factors_of(curve, statistics, matching.center_keys)
    check_attention(q, k, k, key_mask=key_mask, cu_seqlens=cu_seqlens)
    queries = sample_queries(q, k, key_mask, cu_seqlens)  # once for both
    statistics = measure(
        q,
        k,
        key_mask=key_mask,
        cu_seqlens=cu_seqlens,
        scale=scale,
        exact_scores=exact,
        center_keys=matching.center_keys,
        queries=queries,
    )
    if matching.target != "entropy":
        return statistics, factors_of(curve, statistics, matching.center_keys)
    return correct(
        curve,
        statistics,
        q,
        k,
        key_mask=key_mask,
        cu_seqlens=cu_seqlens,
        center_keys=matching.center_keys,
        queries=queries,
    )


def match(
    matching: str | float | Matching,
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Factors:
    """α and β for these queries and keys, from these queries and keys alone."""
    matching = resolve(matching)
    if matching.fixed is not None:
        return constant_factors(matching.fixed, q, k)
    if matching.statistics in ("frozen", "running"):
        raise ValueError(
            f"matching.statistics={matching.statistics!r} needs a module that stores them: "
            "use lln.LLNAttention, or 'sequence' here"
        )
    calibrated = curve(matching, q.shape[3])
    return moments(
        matching, calibrated, q, k, key_mask=key_mask, cu_seqlens=cu_seqlens, scale=scale
    )[1]
