"""Causal linear attention that takes its chunks one after another: the form for a CPU.

Numerators and denominators are summed apart, which keeps products as wide as the values. The
backward is written out, since autograd would save the sums of every step and pass over all of
them again, and both go through few chunks at a time, whose weights then stay in the cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.precision import no_autocast

# Chunks that are read at a time: fewer fit the cache better, more keep threads from waiting.
BLOCK = 64


def starts(sequence: Tensor) -> list[bool]:
    """For each of M chunks, whether a sequence starts with it; `sequence` `(M,)` is which."""
    return [True, *sequence.diff().ne(0).tolist()]


def peaks_before(own: Tensor, starts: list[bool], before: Tensor) -> Tensor:
    """The largest of what each sequence had before each chunk, and after the last one.

    Args:
        own: `(B, H, M, D)`, the largest of each chunk.
        starts: for each chunk, whether a sequence starts with it.
        before: `(B, H, D)`, what came before the first chunk.

    Returns:
        `(B, H, M + 1, D)`, −inf where a sequence starts.
    """
    peaks = [before]
    for peak, ends in zip(own.unbind(2), [*starts[1:], False], strict=True):
        peaks.append(torch.full_like(peak, -torch.inf) if ends else torch.maximum(peaks[-1], peak))
    return torch.stack(peaks, 2)


def attend_in_order(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    base: Tensor | None,
    decay: Tensor,
    starts: list[bool],
    before: Tensor,
) -> tuple[Tensor, Tensor]:
    """Averages of the values, weighted by Φ(q_i) · Φ(k_j), over the keys j ≤ i of a sequence.

    Args:
        q: `(B, H, M, n · G, D)`, G rows at each position.
        k: `(B, H, M, n, D)`.
        v: `(B, H, M, n, E)`.
        base: `(B, H, M, D)`: the features are exp(q + base) and exp(k − base), and base is a
            constant. If None, q and k are the features.
        decay: `(B, H, M, D)`, what sums are multiplied with after each chunk; a constant.
        starts: for each chunk, whether a sequence starts with it.
        before: `(B, H, D, E + 1)`, the sums of `[v, 1]` over what came before the first chunk.

    Returns:
        `(B, H, M, n · G, E)`, 0 for a row without weights, and the sums after the last chunk.
    """
    out, total, count = _InOrder.apply(  # type: ignore[no-untyped-call]
        q, k, v, base, decay.unsqueeze(-1), starts, before[..., :-1], before[..., -1:]
    )
    return out, torch.cat([total, count], -1)


class _InOrder(torch.autograd.Function):
    """u · (sums before the chunk) + lower(u wᵀ) v, divided by the same with ones for values."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        base: Tensor | None,
        decay: Tensor,
        starts: list[bool],
        total: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        chunks = q.shape[:3]
        q, k, v = (x.flatten(0, 2) for x in (q, k, v))  # (B · H · M, ·, ·)
        u, w = q, k
        if base is not None:
            base = base.flatten(0, 2).unsqueeze(1)  # (B · H · M, 1, D)
            u, w = torch.empty_like(q), torch.empty_like(k)
        totals, counts = _room_for_sums(w, v)
        for at in _blocks(len(w)):
            if base is not None:
                torch.sub(k[at], base[at], out=w[at]).exp_()
            torch.bmm(w[at].mT, v[at], out=totals[1:][at])
            torch.sum(w[at], 1, out=counts[1:][at].squeeze(-1))
        total = _sums_before(totals, decay, starts, total)
        count = _sums_before(counts, decay, starts, count)
        totals, counts = totals[:-1], counts[:-1]

        weight = u.new_empty(*u.shape[:2], w.shape[1])  # (..., n · G, n)
        norm = u.new_empty(*u.shape[:2], 1)
        out = u.new_empty(*u.shape[:2], v.shape[2])
        for at in _blocks(len(u)):
            if base is not None:  # what all features of a row have in common cancels
                torch.add(q[at], base[at], out=u[at])
                u[at].sub_(u[at].amax(-1, keepdim=True)).exp_()
            _lower(torch.bmm(u[at], w[at].mT, out=weight[at]))
            torch.sum(weight[at], -1, keepdim=True, out=norm[at])
            norm[at] += (counts[at].mT @ u[at].mT).mT  # in a fifth of the time of u @ counts
            norm[at].masked_fill_(norm[at] == 0, 1)
            torch.bmm(u[at], totals[at], out=out[at]).baddbmm_(weight[at], v[at]).div_(norm[at])
        ctx.save_for_backward(u, w, v, decay, totals, counts, weight, norm, out)
        ctx.starts, ctx.exponential = starts, base is not None
        return out.unflatten(0, chunks), total, count

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor, d_total: Tensor, d_count: Tensor
    ) -> tuple[Tensor | None, ...]:
        u, w, v, decay, totals, counts, weight, norm, out = ctx.saved_tensors
        chunks = grad.shape[:3]
        grad = grad.flatten(0, 2)
        d_q, d_k, d_v = torch.empty_like(u), torch.empty_like(w), torch.empty_like(v)
        d_totals, d_counts = _room_for_sums(w, v)
        with no_autocast(grad.device):
            for at in _blocks(len(u)):
                g = grad[at] / norm[at]  # of the numerators
                d_norm = (g * out[at]).sum(-1, keepdim=True).neg_()
                d_weight = _lower(torch.baddbmm(d_norm, g, v[at].mT))
                torch.bmm(g, totals[at].mT, out=d_q[at]).baddbmm_(d_weight, w[at])
                d_q[at].addcmul_(d_norm, counts[at].mT)
                if ctx.exponential:
                    d_q[at].mul_(u[at])
                torch.bmm(d_weight.mT, u[at], out=d_k[at])
                torch.bmm(weight[at].mT, g, out=d_v[at])
                torch.bmm(u[at].mT, g, out=d_totals[:-1][at])
                torch.bmm(d_norm.mT, u[at], out=d_counts[:-1][at].mT)
            d_total = _sums_after(d_totals, decay, ctx.starts, d_total)
            d_count = _sums_after(d_counts, decay, ctx.starts, d_count)
            d_totals, d_counts = d_totals[1:], d_counts[1:]
            for at in _blocks(len(w)):
                d_k[at].baddbmm_(v[at], d_totals[at].mT).add_(d_counts[at].mT)
                if ctx.exponential:
                    d_k[at].mul_(w[at])
                d_v[at].baddbmm_(w[at], d_totals[at])
        d_q, d_k, d_v = (x.unflatten(0, chunks) for x in (d_q, d_k, d_v))
        return d_q, d_k, d_v, None, None, None, d_total, d_count


def _blocks(chunks: int) -> Iterator[slice]:
    return (slice(first, first + BLOCK) for first in range(0, chunks, BLOCK))


def _room_for_sums(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Totals and counts of B · H · M chunks, and a place more.

    What a chunk adds stands at its index + 1, what came before it at its index: sums up to one
    chunk are where the next looks for them. Only between heads a place has two meanings.
    """
    chunks, dim = len(w) + 1, w.shape[2]
    return w.new_empty(chunks, dim, v.shape[2]), w.new_empty(chunks, dim, 1)


def _sums_before(sums: Tensor, decay: Tensor, starts: list[bool], before: Tensor) -> Tensor:
    """Turns what each chunk adds into the sums before it, in place; returns the sums after all."""
    own, past = (x.unflatten(0, decay.shape[:3]) for x in (sums[1:], sums[:-1]))
    own.mul_(decay)
    own[:, :, 0].addcmul_(before, decay[:, :, 0])
    for m in range(1, len(starts)):
        if starts[m]:
            past[:, :, m] = 0
        own[:, :, m].addcmul_(past[:, :, m], decay[:, :, m])
    after: Tensor = own[:, :, -1].clone()
    past[:, :, 0] = before
    return after


def _sums_after(sums: Tensor, decay: Tensor, starts: list[bool], after: Tensor) -> Tensor:
    """The gradient of `_sums_before`: from those of the sums before to those of what is added."""
    own, past = (x.unflatten(0, decay.shape[:3]) for x in (sums[1:], sums[:-1]))
    past[:, :, -1].addcmul_(after, decay[:, :, -1])
    for m in reversed(range(len(starts) - 1)):
        if starts[m + 1]:
            own[:, :, m] = 0
        past[:, :, m].addcmul_(own[:, :, m], decay[:, :, m])
    before: Tensor = past[:, :, 0].clone()
    own[:, :, -1] = after
    own.mul_(decay)
    return before


def _lower(weight: Tensor) -> Tensor:
    """`weight` `(..., n · G, n)`, changed to 0 where the key comes after the row."""
    for head in weight.unflatten(-2, (weight.shape[-1], -1)).unbind(-2):  # (..., n, n)
        head.tril_()
    return weight
