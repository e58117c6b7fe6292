"""LLN attention as two softmaxes, out = A Bᵀ v, with a backward that is written out.

    z_c = log Σ_j exp(β k_jc),   A = softmax_c(α q + z + offset),   B = softmax_j(β k)

Nothing but the inputs, z and the D × E sums is kept for the backward pass: A and B are computed
anew, which on a CPU takes no more time than writing A and reading it again. There
everything runs over pieces that stay in the cache.
"""

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.pieces import join, of, pays_to_look, room_for, spans, stacks, within
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
        padding = _padding(key_mask, k)
        sums = (_sums_over_keys(*of(stack, k, v, beta * LOG2E, padding)) for stack in stacks(k))
        peak, columns, summary = (join(parts, k) for parts in zip(*sums, strict=True))
        peak, columns = or_zero(peak), columns.masked_fill(columns == 0, 1)  # without a key
        summary = summary / columns.mT
        # Only differences between features matter: taking off the largest peak saves the digits
        # that a common offset of the keys would cost.
        z = (peak - peak.amax(-1, keepdim=True)) / LOG2E + columns.log()
        z = (z if offset is None else z + offset).unsqueeze(2)  # (B, H, 1, 1, D)
        out = _empty(q, v.shape[-1])
        for stack in stacks(q):
            _attend(*of(stack, q, alpha, z, summary, out))
        ctx.save_for_backward(q, k, v, alpha, beta, key_mask, z, peak, columns, summary)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alpha, beta, key_mask, z, peak, columns, summary = ctx.saved_tensors
        d_q, d_k, d_v = (_empty(x, x.shape[-1]) for x in (q, k, v))
        d_alpha = torch.zeros_like(alpha) if ctx.needs_input_grad[3] else None
        d_beta = torch.zeros_like(beta) if ctx.needs_input_grad[4] else None
        with no_autocast(grad.device):
            sums = (
                _backward_of_rows(*of(stack, grad, q, alpha, z, summary, d_q, d_alpha))
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
                    *of(stack, k, v, beta, padding, peak, d_z, d_summary, d_k, d_v, d_beta)
                )
        return d_q, d_k, d_v, d_alpha, d_beta, d_offset, None


def _sums_over_keys(k: Tensor, v: Tensor, scale: Tensor, padding: Tensor | None) -> "_KeySums":
    """Finding peaks takes time, so they are taken off the exponents only if they have to be."""
    if pays_to_look(k):
        found = _sums_over_spans(k, v, scale, padding, peaked=False)
        if is_tame(found.columns) and found.summary.isfinite().all():
            return found
    return _sums_over_spans(k, v, scale, padding, peaked=True)


def _sums_over_spans(
    k: Tensor, v: Tensor, scale: Tensor, padding: Tensor | None, peaked: bool
) -> "_KeySums":
    cut = spans(k)
    room, no_peak = room_for(k, cut), torch.zeros_like(k[:, :, :1])

    def sums(span: slice) -> _KeySums:
        peak = no_peak
        if peaked:  # by a peak of its own, so that a key is read from memory but once
            part = k[:, :, span]
            exponents = torch.mul(part, scale, out=within(room, part))
            peak = _blank(exponents, padding, span).amax(-2, keepdim=True)
        b = _powers(k, scale, or_zero(peak), padding, span, room)
        return _KeySums(peak, b.sum(-2, keepdim=True), b.mT @ v[:, :, span])

    return reduce(_KeySums.beside, map(sums, cut))


class _KeySums(NamedTuple):
    """Of b = 2 ** (exponent − peak) over some keys: Σ b `(B, H, 1, D)` and Σ b v `(B, H, D, E)`."""

    peak: Tensor
    columns: Tensor
    summary: Tensor

    def beside(self, other: "_KeySums") -> "_KeySums":
        """The sums over the keys of both."""
        peak = torch.maximum(self.peak, other.peak)
        mine, its = ((x.peak - or_zero(peak)).exp2() for x in (self, other))
        columns = mine * self.columns + its * other.columns
        return _KeySums(peak, columns, mine.mT * self.summary + its.mT * other.summary)


def _attend(q: Tensor, alpha: Tensor, z: Tensor, summary: Tensor, out: Tensor) -> None:
    """Puts softmax(α q + z) summary into `out`."""
    cut = spans(q)
    room = room_for(q, cut)
    for span in cut:
        a = _rows(q, alpha, z, span, room)
        torch.matmul(a, summary.unsqueeze(2), out=out[..., span, :])


def _backward_of_rows(
    grad: Tensor,
    q: Tensor,
    alpha: Tensor,
    z: Tensor,
    summary: Tensor,
    d_q: Tensor,
    d_alpha: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Of out = softmax(α q + z) summary: the gradients of z and summary.

    Those of q and α go into `d_q` and `d_alpha`.
    """
    cut = spans(q)
    room, more_room = room_for(q, cut), room_for(q, cut)
    d_z, d_summary = torch.zeros_like(z[:, :, 0]), torch.zeros_like(summary)
    for span in cut:
        a, d_out, part = _rows(q, alpha, z, span, room), grad[..., span, :], d_q[..., span, :]
        d_summary = d_summary + (a.mT @ d_out).sum(2)
        place = part if part.is_contiguous() else within(more_room, a)
        d_a = torch.matmul(d_out, summary.mT.unsqueeze(2), out=place)
        d_logits = torch.ops.aten._softmax_backward_data.out(d_a, a, -1, a.dtype, grad_input=d_a)
        d_z = d_z + d_logits.sum((2, 3)).unsqueeze(2)
        if d_alpha is not None:
            d_alpha += (d_logits * q[..., span, :]).sum((-2, -1), keepdim=True)
        torch.mul(d_logits, alpha, out=part)
    return d_z, d_summary


def _backward_of_columns(
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    padding: Tensor | None,
    peak: Tensor,
    d_z: Tensor,
    d_summary: Tensor,
    d_k: Tensor,
    d_v: Tensor,
    d_beta: Tensor | None,
) -> None:
    """Of b = exp(β k − peak), by its sum and by bᵀ v: the gradients of k, v and β.

    They go into `d_k`, `d_v` and `d_beta`.
    """
    cut = spans(k)
    room = room_for(k, cut)
    # The gradient of β k has to be seen if β's is asked for; otherwise β goes in beforehand.
    ahead = beta if d_beta is None else torch.ones_like(beta)
    d_sums, d_products = ahead * d_z, (ahead * d_summary).mT
    for span in cut:
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
    peak: Tensor,
    padding: Tensor | None,
    span: slice,
    room: Tensor | None,
) -> Tensor:
    """2 ** (scale · k − peak) in a span of the keys, 0 at padding.

    Both passes have it from here: where exponents are large, another rounding is another number.
    """
    part = k[:, :, span]
    exponents = torch.addcmul(-peak, part, scale, out=within(room, part))
    return _blank(exponents, padding, span).exp2_()


def _rows(q: Tensor, alpha: Tensor, z: Tensor, span: slice, room: Tensor | None) -> Tensor:
    """A in a span of the queries."""
    part = q[..., span, :]
    place = within(room, part)
    if pays_to_look(part):  # a softmax without its maxima is faster
        a = torch.addcmul(z * LOG2E, part, alpha * LOG2E, out=place).exp2_()
        total = a.sum(-1, keepdim=True)
        if is_tame(total):
            return a.div_(total)
    return torch.softmax(torch.addcmul(z, part, alpha, out=place), -1, out=place)


def _padding(key_mask: Tensor | None, k: Tensor) -> Tensor | None:
    """`(B, H, N_k, 1)`."""
    return None if key_mask is None else (~key_mask)[:, None, :, None].expand(*k.shape[:3], 1)


def _blank(exponents: Tensor, padding: Tensor | None, span: slice) -> Tensor:
    """−inf at padding."""
    if padding is None:
        return exponents
    return exponents.masked_fill_(padding[:, :, span], -torch.inf)


def _empty(like: Tensor, width: int) -> Tensor:
    """Of the same layout, if that is possible; compilers write in order only."""
    if width == like.shape[-1] and not torch.compiler.is_compiling():
        return torch.empty_like(like)
    return like.new_empty(*like.shape[:-1], width)
