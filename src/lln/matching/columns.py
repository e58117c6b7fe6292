"""A correction of σ̃ for the keys at hand, in O(N · D).

Each row of P is a mixture of the D columns of B, so LLN's entropy follows the entropy of the
columns that rows read, C = Σ_c w_c H(B_c) with w the mean row of A. On Gaussian inputs the two
differ from draw to draw by almost the same amount (correlation 0.96 to 0.99), while σ_q and σ_k
know nothing of it. So C is measured once at the calibrated σ̃, and σ̃ moves by as much as brings C to
its calibrated value. It also notices keys whose tails are not Gaussian.
"""

import math
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.pieces import join, of, pays_to_look, room_for, spans, stacks, within
from lln.functional.precision import LOG2E, is_tame, no_autocast, or_zero, upcast
from lln.matching.statistics import Statistics, sample_queries
from lln.matching.tokens import Tokens
from lln.matching.width import Curve, Factors, expect, factors_of, split

LARGEST = math.log(2)  # σ̃ is at most doubled or halved
NOTHING = -200.0  # 2 to that power vanishes, and so does its product with it, unlike 0 · −inf
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
    queries: Tokens | None = None,
) -> tuple[Statistics, Factors]:
    """`statistics` with the correction that the columns of these keys call for, and α and β."""
    if q.shape[2] == 0 or k.shape[2] == 0:
        return statistics, factors_of(curve, statistics, center_keys)
    expected = expect(curve, statistics.score_var.sqrt(), statistics.log_keys)
    found = split(expected.width, statistics, center_keys)
    measured = column_entropy(
        q, k, found, key_mask=key_mask, cu_seqlens=cu_seqlens, queries=queries
    )
    correction = (measured - expected.columns) / (-expected.slope).clamp(min=FLATTEST)
    correction = correction.clamp(-LARGEST, LARGEST).where(expected.on_grid, 0)
    corrected = statistics._replace(correction=correction)
    return corrected, split(expected.width * correction.exp(), statistics, center_keys)


def column_entropy(
    q: Tensor,
    k: Tensor,
    found: Factors,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    queries: Tokens | None = None,
) -> Tensor:
    """Σ_c w_c H(B_c) in bits, `(rows, H)`.

    All keys count, since H(B_c) depends on the few largest; for w a sample of the queries will do,
    which is `queries` if it has been taken.
    """
    with no_autocast(q.device):
        queries = queries or sample_queries(q, k, key_mask, cu_seqlens)
        keys = Tokens(upcast(k), key_mask, cu_seqlens)
        beta = found.beta.to(keys.x.dtype).unsqueeze(-1)
        log_total, column = _columns(keys, beta)
        z = log_total / LOG2E
        if found.key_shift is not None:
            z = z - beta * found.key_shift
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            z, column = (x.repeat_interleave(groups, dim=1) for x in (z, column))
        alpha = found.alpha.to(queries.x.dtype).unsqueeze(-1)
        a = torch.addcmul(queries.spread(z), queries.x, queries.spread(alpha)).softmax(-1)
        weight = queries.average(queries.blank(a, 0).sum(-2))
        return (weight * column).sum(-1)


def _columns(keys: Tokens, beta: Tensor) -> tuple[Tensor, Tensor]:
    """log2 Σ_j exp(β k_jc) and H(B_c) in bits, `(rows, H_kv, D)` each."""
    scale = keys.spread(beta * LOG2E)
    keep = None if keys.keep is None else keys.keep.expand(*keys.x.shape[:-1], 1)
    sums = (_sums(*of(stack, keys.x, scale, keep)) for stack in stacks(keys.x))
    found = _Sums(*(join(parts, keys.x) for parts in zip(*sums, strict=True)))
    peak = keys.per_row_max(found.peak)  # of a sequence, which may have several chunks
    _, total, log_sum = found.under(keys.spread(peak).squeeze(-2))
    total, log_sum = keys.per_row(total), keys.per_row(log_sum)
    total = total.masked_fill(total == 0, 1)
    log_total = total.log2()
    return or_zero(peak) + log_total, log_total - log_sum / total


def _sums(x: Tensor, scale: Tensor, keep: Tensor | None) -> "_Sums":
    """Finding peaks takes time, so they are taken off the exponents only if they have to be."""
    if pays_to_look(x):
        found = _sums_over_spans(x, scale, keep, peaked=False)
        if is_tame(found.total):
            return found
    return _sums_over_spans(x, scale, keep, peaked=True)


def _sums_over_spans(x: Tensor, scale: Tensor, keep: Tensor | None, peaked: bool) -> "_Sums":
    cut = spans(x)
    room, more_room = room_for(x, cut), room_for(x, cut)
    no_peak = torch.zeros_like(x[..., 0, :])

    def sums(span: slice) -> _Sums:
        part = x[..., span, :]
        exponent = torch.mul(part, scale, out=within(room, part))
        if keep is not None:
            exponent.masked_fill_(~keep[..., span, :], -torch.inf)
        peak = no_peak
        if peaked:  # by a peak of its own, so that a key is read from memory but once
            peak = exponent.amax(-2)
            exponent.sub_(or_zero(peak).unsqueeze(-2))
        if keep is not None:
            exponent.clamp_(min=NOTHING)
        b = torch.exp2(exponent, out=within(more_room, part))
        return _Sums(peak, b.sum(-2), b.mul_(exponent).sum(-2))

    return reduce(_Sums.beside, map(sums, cut))


class _Sums(NamedTuple):
    """Σ b and Σ b log2 b of b = 2 ** (exponent − peak)."""

    peak: Tensor
    total: Tensor
    log_sum: Tensor

    def under(self, peak: Tensor) -> "_Sums":
        """The same below a higher peak."""
        fall = (self.peak - or_zero(peak)).clamp(min=NOTHING)
        share = fall.exp2()
        return _Sums(peak, share * self.total, share * (self.log_sum + fall * self.total))

    def beside(self, other: "_Sums") -> "_Sums":
        """The sums over the keys of both."""
        peak = torch.maximum(self.peak, other.peak)
        mine, its = self.under(peak), other.under(peak)
        return _Sums(peak, mine.total + its.total, mine.log_sum + its.log_sum)
