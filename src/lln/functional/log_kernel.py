"""κ(q, k) = Σ_c exp(q_c + k_c) in chunks, exact whatever the size of the exponents.

**Within reach.** Relative to the peak of all earlier chunks, the keys of a chunk are seldom large:
then the weights within a chunk are one product, and the backward is written out.

**Beyond it**, rows and keys can share no peak: one that lies in a row's future could underflow all
that the row sees. What such a row sees is tiled by halves instead: the second half of every node
reads its first half relative to that half's peak, for nodes of two tokens, four, and so on up to
the chunk.

Which of the two a row takes depends on its past alone.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.chunked import normalise
from lln.functional.precision import no_autocast, or_zero
from lln.functional.prefix import Sums

# exp(±REACH) times whatever exp gives in float32 loses nothing that is not below rounding.
REACH = 30.0


class LogKernel:
    """κ(q, k) = Σ_c exp(q_c + k_c), given the logarithms of the features."""

    blank = -torch.inf

    def sums(self, k: Tensor, v: Tensor) -> Sums:
        """Σ_j exp(k_j) v_jᵀ with the largest k per feature as its peak."""
        peak = k.detach().amax(-2)
        return Sums(peak, _Total.apply(k, v, peak))  # type: ignore[no-untyped-call]

    def read(self, q: Tensor, sums: Sums) -> Tensor:
        """Averages by exp(q_i) · sums, which is taken relative to the row's largest exponent."""
        peak = sums.peak.unsqueeze(-2)
        top = (q.detach() + peak).amax(-1, keepdim=True)
        return normalise((q + peak - or_zero(top)).exp() @ sums.total)

    def read_causal(self, q: Tensor, k: Tensor, v: Tensor, before: Sums) -> Tensor:
        """The same over `before` and the chunk's own keys up to each row's position."""
        if k.device.type != "cpu" or torch.compiler.is_compiling():
            return self._read_tiled(q, k, v, before)  # nothing waits for what is within reach
        near: Tensor = _ReadNear.apply(q, k, v, *before)  # type: ignore[no-untyped-call]
        if _all_within_reach(k, before.peak):
            return near
        beyond = _beyond_reach(k, before.peak).repeat_interleave(q.shape[-2] // k.shape[-2], -2)
        return torch.where(beyond, self._read_tiled(q, k, v, before), near)

    def _read_tiled(self, q: Tensor, k: Tensor, v: Tensor, before: Sums) -> Tensor:
        n, groups = k.shape[-2], q.shape[-2] // k.shape[-2]
        with torch.no_grad():
            peak = before.peak.unsqueeze(-2)
            seen = torch.maximum(k.cummax(-2).values, peak)  # (..., n, D)
            top = (q.unflatten(-2, (n, groups)) + seen.unsqueeze(-2)).amax(-1, keepdim=True)
            top = or_zero(top).flatten(-3, -2)  # (..., n · G, 1)
        return normalise((q + peak - top).exp() @ before.total + self._own_chunk(q - top, k) @ v)

    def _own_chunk(self, q: Tensor, k: Tensor) -> Tensor:
        """Lower triangular weights `(..., n · G, n)`, n a power of two, from the bottom up."""
        n, groups = k.shape[-2], q.shape[-2] // k.shape[-2]
        k = k.unflatten(-2, (n, 1))  # n nodes of one token: (..., n, 1, D)
        q = q.unflatten(-2, (n, groups))  # (..., n, G, D)
        weight = (q + k).exp().sum(-1, keepdim=True)  # a token sees itself: (..., n, G, 1)
        while n > 1:
            n //= 2
            pairs_k, pairs_q = k.unflatten(-3, (n, 2)), q.unflatten(-3, (n, 2))
            first_k, second_q = pairs_k.select(-3, 0), pairs_q.select(-3, 1)
            peak = first_k.detach().amax(-2, keepdim=True)
            cross = (second_q + peak).exp() @ (first_k - or_zero(peak)).exp().mT
            first, second = weight.unflatten(-3, (n, 2)).unbind(-3)
            upper = torch.cat([first, torch.zeros_like(cross)], -1)
            lower = torch.cat([cross, second], -1)
            weight = torch.cat([upper, lower], -2)  # nodes twice as long
            k, q = pairs_k.flatten(-3, -2), pairs_q.flatten(-3, -2)
        return weight.squeeze(-3)


def _all_within_reach(k: Tensor, peak: Tensor) -> bool:
    """No row is beyond reach: less to compute than for which of them, and nearly always true."""
    near = (k.amax(-2) <= or_zero(peak) + REACH).all()
    first = k[(peak == -torch.inf).any(-1)]  # chunks with nothing before them
    return bool(near) and not bool(((first < -REACH) & (first > -torch.inf)).any())


def _beyond_reach(k: Tensor, peak: Tensor) -> Tensor:
    """`(..., n, 1)` where a key is seen that is too large for exp(k − peak), or only small ones."""
    seen, peak = k.detach().cummax(-2).values, peak.unsqueeze(-2)
    large = seen > or_zero(peak) + REACH
    small = (seen < -REACH) & (seen > -torch.inf) & (peak == -torch.inf)
    return (large | small | seen.isnan()).any(-1, keepdim=True)


class _Total(torch.autograd.Function):
    """exp(k − peak)ᵀ v."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, peak: Tensor) -> Tensor:
        w = (k - or_zero(peak).unsqueeze(-2)).exp_()
        ctx.save_for_backward(w, v)
        return w.mT @ v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        w, v = ctx.saved_tensors
        with no_autocast(grad.device):
            return (v @ grad.mT).mul_(w), w @ grad, None


class _ReadNear(torch.autograd.Function):
    """U total + W v, normalised, with U = exp(q + peak), w = exp(k − peak), W = lower(U wᵀ)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, peak: Tensor, total: Tensor) -> Tensor:
        peak = or_zero(peak).unsqueeze(-2)
        u = q + peak
        u.sub_(u.amax(-1, keepdim=True)).exp_()
        w = (k - peak).clamp_(max=REACH).exp_()  # rows that see what is clamped are beyond reach
        weight = _lower(u @ w.mT)  # (..., n · G, n)
        sums = (u @ total).add_(weight @ v)
        out = normalise(sums)
        count = sums[..., -1:]
        ctx.save_for_backward(u, w, weight, v, total, out, count.masked_fill(count == 0, 1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w, weight, v, total, out, count = ctx.saved_tensors
        with no_autocast(grad.device):
            # Of the numerators, and in the last column of the denominator.
            grad = torch.cat([grad, -(grad * out).sum(-1, keepdim=True)], -1).div_(count)
            d_weight = _lower(grad @ v.mT)
            d_q = (grad @ total.mT).add_(d_weight @ w).mul_(u)
            d_k = (d_weight.mT @ u).mul_(w)
            return d_q, d_k, weight.mT @ grad, None, u.mT @ grad


def _lower(weight: Tensor) -> Tensor:
    """`weight` `(..., n · G, n)`, changed to 0 where the key comes after the row."""
    for head in weight.unflatten(-2, (weight.shape[-1], -1)).unbind(-2):  # (..., n, n)
        head.tril_()
    return weight
