"""From queries and keys to α and β, as a `Matching` says."""

import torch
from torch import Tensor

from lln.functional.precision import no_autocast
from lln.matching.columns import correct
from lln.matching.factors import Factors, constant_factors, factors_of
from lln.matching.statistics import Statistics, measure_batch, sample, statistics_of
from lln.matching.width import Curve, Matching, curve, resolve

# Sequences of up to `WHOLE` tokens are matched by all of them; longer ones by `SAMPLE`, so that
# finding α and β takes little of the time of the attention itself.
SAMPLE, WHOLE = 127, 521


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
    with torch.no_grad(), no_autocast(q.device):
        measured = sample(q, k, key_mask, cu_seqlens, SAMPLE, WHOLE)
        statistics = statistics_of(measured, scale, exact, matching.center_keys)
        if matching.target == "entropy":
            return correct(curve, statistics, measured, matching.center_keys)
        return statistics, factors_of(curve, statistics, matching.center_keys)


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
