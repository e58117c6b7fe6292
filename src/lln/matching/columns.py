"""A correction of σ̃ for the keys at hand, in O(N · D).

Each row of P is a mixture of the D columns of B, so LLN's entropy follows the entropy of the
columns that rows read, C = Σ_c w_c H(B_c) with w the mean row of A. On Gaussian inputs the two
differ from draw to draw by almost the same amount (correlation 0.96 to 0.99), while σ_q and σ_k
know nothing of it. So C is measured once at the calibrated σ̃, and σ̃ moves by as much as brings C to
its calibrated value. It also notices keys whose tails are not Gaussian.
"""

import math

import torch
from torch import Tensor

from lln.functional.precision import no_autocast, or_zero, upcast
from lln.matching.statistics import Statistics
from lln.matching.tokens import Tokens
from lln.matching.width import Curve, Factors, factors_of, locate

LARGEST = math.log(2)  # σ̃ is at most doubled or halved
FLATTEST = 0.05  # bits per unit of log σ̃; where C hardly moves with σ̃ it says nothing about it


@torch.no_grad()
def correct(
    curve: Curve,
    statistics: Statistics,
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    center_keys: bool = True,
) -> Statistics:
    """`statistics` with the correction that the columns of these keys call for."""
    if q.shape[2] == 0 or k.shape[2] == 0:
        return statistics
    found = factors_of(curve, statistics, center_keys)
    score_std = statistics.score_var.sqrt()
    expected, slope, inside = locate(curve, score_std, statistics.log_keys)
    measured = column_entropy(q, k, found, key_mask=key_mask, cu_seqlens=cu_seqlens)
    correction = (measured - expected) / (-slope).clamp(min=FLATTEST)
    correction = correction.clamp(-LARGEST, LARGEST).where(inside, 0)
    return statistics._replace(correction=correction)


def column_entropy(
    q: Tensor,
    k: Tensor,
    found: Factors,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Σ_c w_c H(B_c) in bits, `(rows, H)`."""
    with no_autocast(q.device):
        queries = Tokens(upcast(q), key_mask if q.shape[2] == k.shape[2] else None, cu_seqlens)
        keys = Tokens(upcast(k), key_mask, cu_seqlens)
        beta = found.beta.to(keys.x.dtype).unsqueeze(-1)
        log_k = keys.blank(keys.x * keys.spread(beta), -torch.inf)
        peak = or_zero(keys.per_row_max(log_k.amax(-2)))  # (rows, H_kv, D)
        log_k = log_k - keys.spread(peak)
        b = log_k.exp()
        total = keys.per_row(b.sum(-2))
        total = total.masked_fill(total == 0, 1)
        column = total.log() - keys.per_row((b * keys.blank(log_k, 0)).sum(-2)) / total

        z = peak + total.log()
        if found.key_shift is not None:
            z = z - beta * found.key_shift
        groups = q.shape[1] // k.shape[1]
        z = z.repeat_interleave(groups, dim=1)  # (rows, H, D)
        alpha = found.alpha.to(queries.x.dtype).unsqueeze(-1)
        a = (queries.x * queries.spread(alpha) + queries.spread(z)).softmax(-1)
        weight = queries.per_row(queries.blank(a, 0).sum(-2))
        weight = weight / queries.count.clamp(min=1).unsqueeze(-1)
        column = column.repeat_interleave(groups, dim=1)
        return (weight * column).sum(-1) / math.log(2)
