"""A correction of σ̃ for the keys at hand.

Each row of P is a mixture of the D columns of B, so LLN's entropy follows the entropy of the
columns that rows read, C = Σ_c w_c H(B_c) with w the mean row of A. On Gaussian inputs the two
differ from draw to draw by almost the same amount (correlation 0.96 to 0.99), while σ_q and σ_k
know nothing of it. So C is measured once at the calibrated σ̃, and σ̃ moves by as much as brings C to
its calibrated value. It also notices keys whose tails are not Gaussian.

Of a long sequence a sample is measured, and matched as if it were a sequence of its own. What it
calls for is in part the chance of a draw, which all keys share only as far as they are in the
sample, and in part the shape of their distribution, which they share altogether.
"""

import math

import torch
from torch import Tensor

from lln.functional.precision import LOG2E, no_autocast, or_zero
from lln.matching.factors import Factors, factors_of, factors_per_width
from lln.matching.statistics import Sample, Statistics, sample
from lln.matching.tokens import Tokens
from lln.matching.width import Curve, Expected, expect

LARGEST = math.log(2)  # σ̃ is at most doubled or halved
FLATTEST = 0.05  # bits per unit of log σ̃; where C hardly moves with σ̃ it says nothing about it
CHANCE = 0.2  # of log σ̃; samples of Gaussian keys call for corrections of std 0.02 to 0.11


def correct(
    curve: Curve, statistics: Statistics, measured: Sample, center_keys: bool
) -> tuple[Statistics, Factors]:
    """`statistics` with the correction that the columns of these keys call for, and α and β."""
    queries, keys = measured
    if queries.x.numel() == 0 or keys.x.numel() == 0:
        return statistics, factors_of(curve, statistics, center_keys)
    score_std = statistics.score_var.sqrt()
    if keys.complete:
        expected = expect(curve, score_std, statistics.log_keys)
        sigma = expected.width
    else:
        log_counts = torch.cat([keys.count.clamp(min=1).log(), statistics.log_keys])
        both, rows = expect(curve, torch.cat([score_std] * 2), log_counts), score_std.shape[0]
        expected, sigma = Expected(*(x[:rows] for x in both)), both.width[rows:]
    factors = factors_per_width(statistics, center_keys)
    columns = _column_entropy(queries, keys, factors.at(expected.width))
    correction = (columns - expected.columns) / expected.fall.clamp(min=FLATTEST)
    correction = correction.clamp(-LARGEST, LARGEST).where(expected.on_grid, 0)
    if not keys.complete:
        correction = _of_all(correction, keys.count / keys.length.clamp(min=1))
    corrected = statistics._replace(correction=correction)
    return corrected, factors.at(sigma * correction.exp())


def _of_all(correction: Tensor, share: Tensor) -> Tensor:
    """What all keys call for if `share` of them call for `correction`."""
    fourth, chance = correction.square().square(), CHANCE**4
    return correction * (fourth + chance * share) / (fourth + chance)


@torch.no_grad()
def column_entropy(
    q: Tensor,
    k: Tensor,
    found: Factors,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Σ_c w_c H(B_c) in bits, `(rows, H)`, of a sample of the queries and keys."""
    with no_autocast(q.device):
        return _column_entropy(*sample(q, k, key_mask, cu_seqlens), found)


def _column_entropy(queries: Tokens, keys: Tokens, found: Factors) -> Tensor:
    beta = found.beta.to(keys.x.dtype).unsqueeze(-1)
    log_total, column = _columns(keys, beta)
    z = log_total / LOG2E
    if found.key_shift is not None:
        z = z - beta * found.key_shift
    groups = queries.x.shape[1] // keys.x.shape[1]
    if groups > 1:
        z, column = (x.repeat_interleave(groups, dim=1) for x in (z, column))
    alpha = found.alpha.to(queries.x.dtype).unsqueeze(-1)
    a = torch.addcmul(queries.spread(z), queries.x, queries.spread(alpha)).softmax(-1)
    weight = queries.average(queries.blank(a, 0).sum(-2))
    return (weight * column).sum(-1)


def _columns(keys: Tokens, beta: Tensor) -> tuple[Tensor, Tensor]:
    """log2 Σ_j exp(β k_jc) and H(B_c) in bits, `(rows, H_kv, D)` each."""
    scale = beta * LOG2E  # not negative: the largest key has the largest exponent
    peak = scale * or_zero(keys.per_row_max(keys.blank(keys.x, -torch.inf).amax(-2)))
    b = torch.addcmul(keys.spread(-peak), keys.x, keys.spread(scale)).exp2_()
    b = keys.blank(b, 0)
    total, weighted = keys.per_row(b.sum(-2)), keys.per_row(b.mul_(keys.x).sum(-2))
    total = total.masked_fill(total == 0, 1)  # without a key
    log_total = peak + total.log2()
    return log_total, log_total - scale * weighted / total
