"""LLN attention as two softmaxes, out = A Bᵀ v, with a backward that is written out.

    z_c = log Σ_j exp(β k_jc),   A = softmax_c(α q + z + offset),   B = softmax_j(β k)

Nothing but the inputs, z and the D × E sums is kept for the backward pass: A and B are computed
anew, which on a CPU takes no more time than writing A and reading it again. There
everything runs over spans of the sequence that stay in the cache.
"""

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.precision import LOG2E, no_autocast, or_zero
from lln.functional.slots import room_for, spans, within


class TwoSoftmaxes(torch.autograd.Function):
    """A Bᵀ v.

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
        peak, columns, summary = _sums_over_keys(k, v, beta * LOG2E, key_mask)
        # Only differences between features matter: taking off the largest peak saves the digits
        # that a common offset of the keys would cost.
        z = (peak - peak.amax(-1, keepdim=True)) / LOG2E + columns.log()
        z = (z if offset is None else z + offset).unsqueeze(2)  # (B, H, 1, 1, D)
        cut = spans(q)
        room, out = room_for(q, cut), _empty(q, v.shape[-1], cut)
        for x in cut:
            part = torch.matmul(_rows(q, alpha, z, x, room), summary.unsqueeze(2), out=_at(out, x))
        ctx.save_for_backward(q, k, v, alpha, beta, key_mask, z, peak, columns, summary)
        return part if out is None else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alpha, beta, key_mask, z, peak, columns, summary = ctx.saved_tensors
        with no_autocast(grad.device):
            d_q, d_alpha, d_z, d_summary = _backward_of_rows(
                grad, q, alpha, z, summary, ctx.needs_input_grad[3]
            )
            d_offset = d_z if ctx.needs_input_grad[5] else None
            d_z = d_z - (summary * d_summary).sum(-1).unsqueeze(-2)
            # B is exp(β k − peak) / columns: the division is made here, once for all keys.
            d_z, d_summary = d_z / columns, d_summary / columns.mT
            d_k, d_v, d_beta = _backward_of_columns(
                k, v, beta, key_mask, peak, d_z, d_summary, ctx.needs_input_grad[4]
            )
        return d_q, d_k, d_v, d_alpha, d_beta, d_offset, None


def _sums_over_keys(
    k: Tensor, v: Tensor, scale: Tensor, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The peak of `scale · k`, Σ b for b = 2 ** (scale · k − peak), and Bᵀ v.

    Each span has its own peak, so that a key is read from memory but once.
    """
    cut = spans(k)
    room = room_for(k, cut)

    def sums(span: slice) -> _KeySums:
        part = k[:, :, span]
        exponents = torch.mul(part, scale, out=within(room, part))
        peak = _blank(exponents, key_mask, span).amax(-2, keepdim=True)
        b = _powers(k, scale, or_zero(peak), key_mask, span, room)
        return _KeySums(peak, b.sum(-2, keepdim=True), b.mT @ v[:, :, span])

    peak, columns, summary = reduce(_KeySums.beside, map(sums, cut))
    columns = columns.masked_fill(columns == 0, 1)  # without a key
    return or_zero(peak), columns, summary / columns.mT


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


def _backward_of_rows(
    grad: Tensor, q: Tensor, alpha: Tensor, z: Tensor, summary: Tensor, scaled: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of out = softmax(α q + z) summary: of q, α (if `scaled`), z and summary."""
    cut = spans(q)
    room, more_room, d_q = room_for(q, cut), room_for(q, cut), _empty(q, q.shape[-1], cut)
    d_alpha = torch.zeros_like(alpha) if scaled else None
    d_z, d_summary = torch.zeros_like(z[:, :, 0]), torch.zeros_like(summary)
    for x in cut:
        a = _rows(q, alpha, z, x, room)
        d_summary = d_summary + (a.mT @ grad[..., x, :]).sum(2)
        d_a = torch.matmul(grad[..., x, :], summary.mT.unsqueeze(2), out=within(more_room, a))
        d_logits = torch.ops.aten._softmax_backward_data(d_a, a, -1, a.dtype)
        d_z = d_z + d_logits.sum((2, 3)).unsqueeze(2)
        if d_alpha is not None:
            d_alpha = d_alpha + (d_logits * q[..., x, :]).sum((-2, -1), keepdim=True)
        part = torch.mul(d_logits, alpha, out=_at(d_q, x))
    return part if d_q is None else d_q, d_alpha, d_z, d_summary


def _backward_of_columns(
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    key_mask: Tensor | None,
    peak: Tensor,
    d_z: Tensor,
    d_summary: Tensor,
    scaled: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of b = exp(β k − peak), by its sum and by bᵀ v: of k, v and β (if `scaled`)."""
    cut = spans(k)
    room, d_k, d_v = room_for(k, cut), _empty(k, k.shape[-1], cut), _empty(v, v.shape[-1], cut)
    d_beta = torch.zeros_like(beta) if scaled else None
    # The gradient of β k has to be seen if β's is asked for; otherwise β goes in beforehand.
    ahead = torch.ones_like(beta) if scaled else beta
    d_sums, d_products = ahead * d_z, (ahead * d_summary).mT
    for x in cut:
        b = _powers(k, beta * LOG2E, peak, key_mask, x, room)
        part_v = torch.matmul(b, d_summary, out=_at(d_v, x))
        part_k = torch.matmul(v[:, :, x], d_products, out=_at(d_k, x)).add_(d_sums).mul_(b)
        if d_beta is not None:  # padding may hold NaN, but its b is 0
            d_beta = d_beta + (part_k * k[:, :, x].where(b > 0, 0)).sum((-2, -1), keepdim=True)
            part_k.mul_(beta)
    return part_k if d_k is None else d_k, part_v if d_v is None else d_v, d_beta


def _powers(
    k: Tensor,
    scale: Tensor,
    peak: Tensor,
    key_mask: Tensor | None,
    span: slice,
    room: Tensor | None,
) -> Tensor:
    """2 ** (scale · k − peak) in a span of the keys, 0 at padding."""
    part = k[:, :, span]
    exponents = torch.addcmul(-peak, part, scale, out=within(room, part))
    return _blank(exponents, key_mask, span).exp2_()


def _blank(exponents: Tensor, key_mask: Tensor | None, span: slice) -> Tensor:
    """−inf at padding."""
    if key_mask is None:
        return exponents
    return exponents.masked_fill_(~key_mask[:, None, span, None], -torch.inf)


def _rows(q: Tensor, alpha: Tensor, z: Tensor, span: slice, room: Tensor | None) -> Tensor:
    """A in a span of the queries."""
    part = q[..., span, :]
    room = within(room, part)
    return torch.softmax(torch.addcmul(z, part, alpha, out=room), -1, out=room)


def _empty(like: Tensor, width: int, cut: list[slice]) -> Tensor | None:
    """Where the results of all spans are written; None if there is but one span."""
    return None if len(cut) == 1 else like.new_empty(*like.shape[:-1], width)


def _at(whole: Tensor | None, span: slice) -> Tensor | None:
    return None if whole is None else whole[..., span, :]
