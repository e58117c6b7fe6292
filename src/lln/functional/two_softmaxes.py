"""LLN attention as two softmaxes, out = A Bᵀ v, with a backward that is written out.

    z_c = log Σ_j exp(β k_jc),   A = softmax_c(α q + z + offset),   B = softmax_j(β k)

Nothing but the inputs, z and the D × E sums is kept for the backward pass: A and B are computed
anew, which on a CPU takes no more time than writing A and reading it again. There
everything runs over pieces that stay in the cache.
"""

from functools import reduce
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.pieces import Stack, join, of, pays_to_look, room_for, spans, stacks, within
from lln.functional.precision import LOG2E, is_tame, no_autocast, or_zero


class TwoSoftmaxes(torch.autograd.Function):
    """A Bᵀ v, laid out like q.

    Args:
        q: `(B, H, G, N_q, D)`, G rows of queries share the keys of a head.
        k: `(B, H, N_k, D)`.
        v: `(B, H, N_k, E)`, 0 at padding.
        alpha: `(B, H, G, 1, 1)`.
        beta: `(B, H, 1, 1)`.
        offset: `(B, H, 1, D)` or None.
        key_mask: `(B, N_k)` or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alpha: Tensor,
        beta: Tensor,
        offset: Tensor | None,
        key_mask: Tensor | None,
    ) -> Tensor:
        room = room_for(k, q)
        peak, columns, summary = _sums_over_keys(k, v, beta, _padding(key_mask, k), room)
        if peak is None:
            z = columns.log()
        else:
            peak, columns = or_zero(peak), columns.masked_fill(columns == 0, 1)  # without a key
            # Only differences between features matter: taking off the largest peak saves the
            # digits that a common offset of the keys would cost.
            z = (peak - peak.amax(-1, keepdim=True)) / LOG2E + columns.log()
        summary = summary / columns.mT
        z = (z if offset is None else z + offset).unsqueeze(2)  # (B, H, 1, 1, D)
        out = _empty(q, v.shape[-1])
        logits = _Logits.of(alpha, z)
        for stack in stacks(q):
            _attend(*of(stack, q, summary, out), logits=logits.within(stack), room=room)
        ctx.save_for_backward(q, k, v, alpha, beta, key_mask, z, peak, columns, summary)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alpha, beta, key_mask, z, peak, columns, summary = ctx.saved_tensors
        d_q, d_k, d_v = (_empty(x, x.shape[-1]) for x in (q, k, v))
        d_alpha = torch.zeros_like(alpha) if ctx.needs_input_grad[3] else None
        d_beta = torch.zeros_like(beta) if ctx.needs_input_grad[4] else None
        room, more_room = room_for(k, q), room_for(q)
        with no_autocast(grad.device):
            logits = _Logits.of(alpha, z)
            sums = (
                _backward_of_rows(
                    *of(stack, grad, q, summary, d_q, d_alpha),
                    logits=logits.within(stack),
                    room=room,
                    more_room=more_room,
                )
                for stack in stacks(q)
            )
            d_z, d_summary = (join(parts, q) for parts in zip(*sums, strict=True))
            d_offset = d_z if ctx.needs_input_grad[5] else None
            d_z = d_z - (summary * d_summary).sum(-1).unsqueeze(-2)
            # B is exp(β k − peak) / columns: the division is made here, once for all keys.
            d_z, d_summary = d_z / columns, d_summary / columns.mT
            padding = _padding(key_mask, k)
            for stack in stacks(k):
                _backward_of_columns(
                    *of(stack, k, v, beta, padding, peak, d_z, d_summary, d_k, d_v, d_beta),
                    room=room,
                )
        return d_q, d_k, d_v, d_alpha, d_beta, d_offset, None


def _sums_over_keys(
    k: Tensor, v: Tensor, beta: Tensor, padding: Tensor | None, room: Tensor | None
) -> "_KeySums":
    """Finding peaks takes time, so they are taken off the exponents only if they have to be."""
    scale = beta * LOG2E

    def sums(peaked: bool) -> _KeySums:
        parts = (
            _sums_over_spans(*of(stack, k, v, scale, padding), room=room, peaked=peaked)
            for stack in stacks(k)
        )
        peaks, columns, summaries = zip(*parts, strict=True)
        return _KeySums(join(peaks, k) if peaked else None, join(columns, k), join(summaries, k))

    if pays_to_look(k):
        found = sums(peaked=False)
        # One number that is not finite, as values near the largest would give, makes the sum so.
        if is_tame(found.columns) and isfinite(found.summary.sum().item()):
            return found
    return sums(peaked=True)


def _sums_over_spans(
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    padding: Tensor | None,
    *,
    room: Tensor | None,
    peaked: bool,
) -> "_KeySums":
    def sums(span: slice) -> _KeySums:
        peak = None
        if peaked:  # by a peak of its own, so that a key is read from memory but once
            peak = _exponents(k, scale, padding, span, room).amax(-2, keepdim=True)
        b = _powers(k, scale, None if peak is None else or_zero(peak), padding, span, room)
        return _KeySums(peak, b.sum(-2, keepdim=True), b.mT @ v[:, :, span])

    return reduce(_KeySums.beside, map(sums, spans(k)))


class _KeySums(NamedTuple):
    """Of b = 2 ** (exponent − peak) over some keys: Σ b `(B, H, 1, D)` and Σ b v `(B, H, D, E)`.

    `peak` is None where none is taken off.
    """

    peak: Tensor | None
    columns: Tensor
    summary: Tensor

    def beside(self, other: "_KeySums") -> "_KeySums":
        """The sums over the keys of both."""
        if self.peak is None or other.peak is None:
            return _KeySums(None, self.columns + other.columns, self.summary + other.summary)
        peak = torch.maximum(self.peak, other.peak)
        mine, its = ((x - or_zero(peak)).exp2() for x in (self.peak, other.peak))
        columns = mine * self.columns + its * other.columns
        return _KeySums(peak, columns, mine.mT * self.summary + its.mT * other.summary)


def _attend(
    q: Tensor, summary: Tensor, out: Tensor, *, logits: "_Logits", room: Tensor | None
) -> None:
    """Puts softmax(α q + z) summary into `out`."""
    for span in spans(q):
        a = logits.softmax(q[..., span, :], room)
        torch.matmul(a, summary.unsqueeze(2), out=out[..., span, :])


def _backward_of_rows(
    grad: Tensor,
    q: Tensor,
    summary: Tensor,
    d_q: Tensor,
    d_alpha: Tensor | None,
    *,
    logits: "_Logits",
    room: Tensor | None,
    more_room: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Of out = softmax(α q + z) summary: the gradients of z and summary.

    Those of q and α go into `d_q` and `d_alpha`.
    """
    d_z, d_summary = torch.zeros_like(logits.z[:, :, 0]), torch.zeros_like(summary)
    for span in spans(q):
        a = logits.softmax(q[..., span, :], room)
        d_out, part = grad[..., span, :], d_q[..., span, :]
        d_summary = d_summary + (a.mT @ d_out).sum(2)
        place = part if part.is_contiguous() else within(more_room, a)
        d_a = torch.matmul(d_out, summary.mT.unsqueeze(2), out=place)
        d_logits = torch.ops.aten._softmax_backward_data.out(d_a, a, -1, a.dtype, grad_input=d_a)
        d_z = d_z + d_logits.sum((2, 3)).unsqueeze(2)
        if d_alpha is not None:
            d_alpha += (d_logits * q[..., span, :]).sum((-2, -1), keepdim=True)
        torch.mul(d_logits, logits.alpha, out=part)
    return d_z, d_summary


def _backward_of_columns(
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    padding: Tensor | None,
    peak: Tensor | None,
    d_z: Tensor,
    d_summary: Tensor,
    d_k: Tensor,
    d_v: Tensor,
    d_beta: Tensor | None,
    *,
    room: Tensor | None,
) -> None:
    """Of b = exp(β k − peak), by its sum and by bᵀ v: the gradients of k, v and β.

    They go into `d_k`, `d_v` and `d_beta`.
    """
    # The gradient of β k has to be seen if β's is asked for; otherwise β goes in beforehand.
    ahead = beta if d_beta is None else torch.ones_like(beta)
    d_sums, d_products = ahead * d_z, (ahead * d_summary).mT
    for span in spans(k):
        part, its_d_k = k[:, :, span], d_k[:, :, span]
        b = _powers(k, beta * LOG2E, peak, padding, span, room)
        torch.matmul(b, d_summary, out=d_v[:, :, span])
        torch.matmul(v[:, :, span], d_products, out=its_d_k).add_(d_sums).mul_(b)
        if d_beta is not None:  # padding may hold NaN, but its b is 0
            d_beta += (its_d_k * part.where(b > 0, 0)).sum((-2, -1), keepdim=True)
            its_d_k.mul_(beta)


def _powers(
    k: Tensor,
    scale: Tensor,
    peak: Tensor | None,
    padding: Tensor | None,
    span: slice,
    room: Tensor | None,
) -> Tensor:
    """2 ** (scale · k − peak) in a span of the keys, 0 at padding.

    Both passes have it from here: where exponents are large, another rounding is another number.
    """
    return _exponents(k, scale, padding, span, room, peak).exp2_()


def _exponents(
    k: Tensor,
    scale: Tensor,
    padding: Tensor | None,
    span: slice,
    room: Tensor | None,
    peak: Tensor | None = None,
) -> Tensor:
    """The exponents of `_powers`, −inf at padding."""
    part = k[:, :, span]
    place = within(room, part)
    if peak is None:
        exponents = torch.mul(part, scale, out=place)
    else:
        exponents = torch.addcmul(-peak, part, scale, out=place)
    if padding is None:
        return exponents
    return exponents.masked_fill_(padding[:, :, span], -torch.inf)


class _Logits(NamedTuple):
    """α q + z, of which A is the softmax, and the same to base 2."""

    alpha: Tensor
    z: Tensor
    alpha2: Tensor
    z2: Tensor

    @classmethod
    def of(cls, alpha: Tensor, z: Tensor) -> "_Logits":
        return cls(alpha, z, alpha * LOG2E, z * LOG2E)

    def within(self, stack: Stack) -> "_Logits":
        return _Logits(*of(stack, *self))

    def softmax(self, q: Tensor, room: Tensor | None) -> Tensor:
        """A of some queries."""
        place = within(room, q)
        if pays_to_look(q):  # a softmax without its maxima is faster
            a = torch.addcmul(self.z2, q, self.alpha2, out=place).exp2_()
            total = a.sum(-1, keepdim=True)
            if is_tame(total):
                return a.mul_(total.reciprocal_())
        return torch.softmax(torch.addcmul(self.z, q, self.alpha, out=place), -1, out=place)


def _padding(key_mask: Tensor | None, k: Tensor) -> Tensor | None:
    """`(B, H, N_k, 1)`."""
    return None if key_mask is None else (~key_mask)[:, None, :, None].expand(*k.shape[:3], 1)


def _empty(like: Tensor, width: int) -> Tensor:
    """Of the same layout, if that is possible; compilers write in order only."""
    if width == like.shape[-1] and not torch.compiler.is_compiling():
        return torch.empty_like(like)
    return like.new_empty(*like.shape[:-1], width)
