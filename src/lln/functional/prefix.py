"""Sums of exponentials over everything that came before, chunk by chunk, without overflow.

A sum Σ_j exp(x_j) y_j is carried as a pair: a *peak* that every x_j stays at or below, and the
*total* Σ_j exp(x_j − peak) y_j. Peaks only keep numbers in range; exp(peak) · total does not
depend on them, so they are constants for autograd. An empty sum has peak −inf and total 0.

Here x is a feature of the keys and y is `[v, 1]`: the last column counts, so that it becomes the
denominator. A peak is `(..., D)`, a total `(..., D, F)`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.precision import or_zero
from lln.functional.slots import count_chunks

# Chunks are combined in groups: every chunk looks at the earlier chunks of its group and every
# group at all earlier groups. With 16 × 64 tokens a group, the second, quadratic step costs less
# than the attention itself up to a million tokens, and neither step loops over the sequence.
GROUP = 16


class Sums(NamedTuple):
    """Σ exp(x) y as `peak` `(..., D)` and `total` `(..., D, F)`."""

    peak: Tensor
    total: Tensor


def nothing(k: Tensor, v: Tensor) -> Sums:
    """The sum of no keys `(B, H, ..., D)` with values `(B, H, ..., E)`, and a column of ones."""
    batch, heads, dim, width = *k.shape[:2], k.shape[-1], v.shape[-1] + 1
    peak = k.new_full((batch, heads, dim), -torch.inf)
    return Sums(peak, v.new_zeros(batch, heads, dim, width))


def merge(a: Sums, b: Sums) -> Sums:
    """The sum over both."""
    peak = torch.maximum(a.peak, b.peak)
    base = or_zero(peak)
    weight_a, weight_b = (a.peak - base).exp(), (b.peak - base).exp()
    return Sums(peak, weight_a.unsqueeze(-1) * a.total + weight_b.unsqueeze(-1) * b.total)


def select(sums: Sums, mask: Tensor) -> Sums:
    """For each row of `mask` `(..., R, M)`, the sum over the M entries that it marks.

    Args:
        sums: peak `(..., M, D)`, total `(..., M, D, F)`.
        mask: `(..., R, M)` bool, without the batch and head dimensions.
    """
    peak = sums.peak.transpose(-1, -2).unsqueeze(-2)  # (..., D, 1, M)
    peak = peak.masked_fill(~mask.unsqueeze(-3), -torch.inf)  # (..., D, R, M)
    top = peak.amax(-1, keepdim=True)  # (..., D, R, 1)
    weight = (peak - or_zero(top)).exp()
    total = weight @ sums.total.transpose(-2, -3)  # (..., D, R, F)
    return Sums(top.squeeze(-1).transpose(-1, -2), total.transpose(-2, -3))


def exclusive_prefix(sums: Sums, sequence: Tensor) -> Sums:
    """For each of M chunks, the sum over the earlier chunks of the same sequence.

    Args:
        sums: peak `(B, H, M, D)`, total `(B, H, M, D, F)`.
        sequence: `(M,)` which sequence a chunk belongs to, not decreasing.
    """
    chunks = sequence.shape[0]
    groups = count_chunks(chunks, GROUP)
    index = torch.arange(groups * GROUP, device=sequence.device)
    spare, index = index >= chunks, index.clamp(max=chunks - 1)
    peak = sums.peak[:, :, index].masked_fill(spare[:, None], -torch.inf)
    sums = Sums(
        peak.unflatten(2, (groups, GROUP)), sums.total[:, :, index].unflatten(2, (groups, GROUP))
    )
    sequence = sequence[index].masked_fill(spare, -1).unflatten(0, (groups, GROUP))

    position = torch.arange(GROUP, device=sequence.device)
    earlier = position[:, None] > position
    within = select(sums, earlier & (sequence[:, :, None] == sequence[:, None, :]))

    # Sequences are contiguous: only a group's last one can go on into a later group, and only
    # as that group's first one.
    first, last = sequence[:, 0], sequence[:, -1]
    group = select(sums, (sequence == last[:, None]).unsqueeze(1))  # (B, H, G, 1, …)
    group = Sums(group.peak.squeeze(3), group.total.squeeze(3))
    position = torch.arange(sequence.shape[0], device=sequence.device)
    before = select(group, (position[:, None] > position) & (first[:, None] == last))
    goes_on = (sequence == first[:, None]).unsqueeze(-1)  # (G, GROUP, 1)
    before = Sums(
        before.peak.unsqueeze(3).masked_fill(~goes_on, -torch.inf), before.total.unsqueeze(3)
    )

    peak, total = merge(within, before)
    return Sums(peak.flatten(2, 3)[:, :, :chunks], total.flatten(2, 3)[:, :, :chunks])


def per_sequence(sums: Sums, sequence: Tensor, sequences: int) -> Sums:
    """For each of M chunks, the sum over all chunks of its sequence (arguments as above)."""
    shape = sums.peak.shape
    index = sequence[:, None].expand(shape)  # (B, H, M, D)
    peak = sums.peak.new_full((*shape[:2], sequences + 1, shape[3]), -torch.inf)
    peak = peak.scatter_reduce(2, index, sums.peak, "amax").gather(2, index)
    total = (sums.peak - or_zero(peak)).exp().unsqueeze(-1) * sums.total
    per = total.new_zeros(*shape[:2], sequences + 1, *total.shape[3:])
    return Sums(peak, per.index_add(2, sequence, total)[:, :, sequence])
