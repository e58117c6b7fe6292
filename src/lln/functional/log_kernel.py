"""κ(q, k) = Σ_c exp(q_c + k_c) in chunks, exact whatever the size of the exponents.

**Within reach.** Relative to the peak of all earlier chunks, the keys of a chunk are seldom large:
then the weights within a chunk are one product (see `in_order`).

**Beyond it**, rows and keys can share no peak: one that lies in a row's future could underflow all
that the row sees. What such a row sees is tiled by halves instead: the second half of every node
reads its first half relative to that half's peak, for nodes of two tokens, four, and so on up to
the chunk.

Which of the two a row takes depends on its past alone: from the first row beyond reach on, a
sequence is tiled. On a GPU and in compiled code all rows are, for nothing may wait to find out.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.chunked import attend_at_once, normalise
from lln.functional.in_order import attend_in_order, peaks_before, starts
from lln.functional.precision import no_autocast, or_zero
from lln.functional.prefix import Sums, nothing

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
        n, groups = k.shape[-2], q.shape[-2] // k.shape[-2]
        with torch.no_grad():
            peak = before.peak.unsqueeze(-2)
            seen = torch.maximum(k.cummax(-2).values, peak)  # (..., n, D)
            top = (q.unflatten(-2, (n, groups)) + seen.unsqueeze(-2)).amax(-1, keepdim=True)
            top = or_zero(top).flatten(-3, -2)  # (..., n · G, 1)
        return normalise((q + peak - top).exp() @ before.total + self._own_chunk(q - top, k) @ v)

    def attend_in_order(
        self, q: Tensor, k: Tensor, v: Tensor, sequence: Tensor, state: Sums | None
    ) -> tuple[Tensor, Sums]:
        """Chunk by chunk as long as keys are within reach."""
        first, before = starts(sequence), nothing(k, v) if state is None else state
        own = k.detach().amax(-2)  # (B, H, M, D)
        peaks = peaks_before(own, first, before.peak)  # (B, H, M + 1, D)
        past, after = peaks[:, :, :-1], peaks[:, :, -1]
        base = or_zero(peaks)
        decay = base.diff(dim=2).neg_().clamp_(max=REACH).exp_()
        base = base[:, :, :-1]
        within, near = _all_within_reach(k, own, past), k
        if not within:  # rows that see what is clamped are tiled
            near = torch.minimum(k, (base + REACH).unsqueeze(-2))
        out, total = attend_in_order(q, near, v, base, decay, first, before.total)
        if not within:
            rows, end = _since_beyond_reach(k, past, first)
            tiled, tiled_after = attend_at_once(self, q, k, v, sequence, state)
            out = tiled.where(rows.repeat_interleave(q.shape[-2] // k.shape[-2], -2), out)
            total = tiled_after.total.where(end.unsqueeze(-1), total)
        return out, Sums(after, total)

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


def _all_within_reach(k: Tensor, own: Tensor, peak: Tensor) -> bool:
    """No row is beyond reach: less to compute than for which of them, and nearly always true."""
    near = (own <= or_zero(peak) + REACH).all()
    first = k[(peak == -torch.inf).any(-1)]  # chunks with nothing before them
    return bool(near) and not bool(((first < -REACH) & (first > -torch.inf)).any())


def _beyond_reach(k: Tensor, peak: Tensor) -> Tensor:
    """`(..., n, 1)` where a key is seen that is too large for exp(k − peak), or only small ones."""
    seen, peak = k.detach().cummax(-2).values, peak.unsqueeze(-2)
    large = seen > or_zero(peak) + REACH
    small = (seen < -REACH) & (seen > -torch.inf) & (peak == -torch.inf)
    return (large | small | seen.isnan()).any(-1, keepdim=True)


def _since_beyond_reach(k: Tensor, peak: Tensor, starts: list[bool]) -> tuple[Tensor, Tensor]:
    """What comes after a row beyond reach: rows `(B, H, M, n, 1)`, and the end `(B, H, 1)`."""
    beyond = _beyond_reach(k, peak)
    last = beyond[..., -1, :].to(k)  # (B, H, M, 1)
    since = peaks_before(last, starts, torch.zeros_like(last[:, :, 0])) > 0  # (B, H, M + 1, 1)
    return beyond | since[:, :, :-1].unsqueeze(-2), since[:, :, -1]


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
