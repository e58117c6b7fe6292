"""Reformer: softmax attention within the buckets of a hash (Kitaev et al. 2020, arXiv 2001.04451).

Keys are the queries, at length 1. Each round hashes them by h(x) = argmax([xR; −xR]), with its own
rotations R. A query sees the keys of its bucket (Eq. 4) that stand in its own chunk or in the one
before (Eq. 5), of all rounds together (Eq. 6). A key counts once, however many rounds it is met in
(appendix A). A token sees itself only where it sees nothing else. Gradients flow through the
scores, not through the hash. O(N · rounds · chunk size · (D + rounds)) after sorting N integers.

Deviations:
    Chunks are cut within each bucket, from its first token. The paper cuts the whole sorted
    sequence: there a later token, or padding, moves the borders and what an earlier token sees.
    The number of buckets is fixed, by default the paper's 2N / chunk size for N = `max_len`, but 64
    at most: with the length of the sequence at hand the future would move the past.
    Rotations are drawn once, and by `redraw`. The authors draw them at each call.
    A token that sees any other has no weight on itself. The authors' has the score −1e5.

The authors' scores are q·k/√D with keys of length √D, here q·k with keys of length 1. Their 1e-6
under the root of the length is kept.
"""

import math

import torch
from torch import Tensor

from lln.attention.sequence import SequenceAttention
from lln.functional.checks import check_positive
from lln.functional.precision import or_zero
from lln.functional.slots import Slots
from lln.registry import register


@register("reformer", paper="Kitaev et al. 2020", complexity="O(N log N)")
class ReformerAttention(SequenceAttention):
    """Softmax attention between tokens with the same hash.

    Args:
        max_len: the longest sequence, from which the default of `buckets` follows.
        buckets: how many values the hash has, an even number. Each may cost a chunk of empty slots.
        chunk_size: tokens per chunk.
        rounds: how many hashes there are.
        seed: of the rotations.
    """

    shares_queries = True
    rotations: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        max_len: int | None = None,
        buckets: int | None = None,
        chunk_size: int = 64,
        rounds: int = 2,
        seed: int = 0,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads)
        check_positive("chunk_size", chunk_size)
        if buckets is None:
            buckets = 64 if max_len is None else min(64, 2 * max(1, max_len // chunk_size))
        check_positive("buckets", buckets)
        check_positive("rounds", rounds)
        if buckets % 2:
            raise ValueError(f"buckets must be even, got {buckets}")
        self.buckets, self.chunk_size, self.rounds = buckets, chunk_size, rounds
        self.register_buffer("rotations", torch.empty(heads, rounds, head_dim, buckets // 2))
        self.redraw(torch.Generator().manual_seed(seed))

    def redraw(self, generator: torch.Generator) -> None:
        """Draws new rotations, from a generator on the CPU."""
        self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        bucket = self._hash(q, keep).flatten(0, 1)  # (B · H, R, N)
        slot = self._sort(bucket)
        # Chunks are numbered through all buckets. With the bucket's number added, one follows on
        # another within a bucket only.
        place = (slot // self.chunk_size + bucket).int().unsqueeze(3)  # (B · H, R, N, 1)

        chunks = q.shape[2] // self.chunk_size + self.buckets + 1  # at most one ragged per bucket
        slots = [Slots(one, chunks, self.chunk_size) for one in slot.unbind(1)]
        queries, values = q.flatten(0, 1).unsqueeze(1), v.flatten(0, 1).unsqueeze(1)
        rounds = [
            _attend_round(r, slots[r], queries, values, place, causal) for r in range(self.rounds)
        ]
        # (B · H, R, N, E), (B · H, R, N, 1) and (B · H, R, N, 1)
        sums, totals, peaks = (torch.cat(parts, 1) for parts in zip(*rounds, strict=True))
        shares = (peaks - or_zero(peaks.amax(1, keepdim=True))).exp()
        total = (shares * totals).sum(1, keepdim=True)  # (B · H, 1, N, 1)
        lonely = total == 0
        out = (shares * sums).sum(1, keepdim=True) / total.masked_fill(lonely, 1)
        return out.where(~lonely, values).view_as(v)

    def _hash(self, q: Tensor, keep: Tensor) -> Tensor:
        """`(B, H, R, N)` the bucket of each token; padding has its own, the last."""
        rotated = q.detach().unsqueeze(2) @ self.rotations.to(q.dtype)  # (B, H, R, N, buckets / 2)
        bucket = torch.cat([rotated, -rotated], -1).argmax(-1)
        return bucket.masked_fill(~keep[:, None, None, :], self.buckets)

    def _sort(self, bucket: Tensor) -> Tensor:
        """Slots, sorted by bucket and position; each bucket starts a new chunk."""
        sizes = bucket.new_zeros(*bucket.shape[:2], self.buckets + 1)
        sizes = sizes.scatter_add(2, bucket, torch.ones_like(bucket))
        empty = -sizes % self.chunk_size
        empty_before = empty.cumsum(2) - empty
        return bucket.argsort(stable=True).argsort() + empty_before.gather(2, bucket)


def _attend_round(
    r: int, slots: Slots, q: Tensor, v: Tensor, place: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Attends in round `r`, where a key weighs exp(score − peak) / rounds in which it is met.

    Args:
        r: the round.
        slots: of its B · H sequences.
        q: `(B · H, 1, N, D)`.
        v: `(B · H, 1, N, E)`.
        place: `(B · H, R, N, 1)`: query i may see key j if its place is that of j or the next.
        causal: query i sees no key j > i.

    Returns:
        `(B · H, 1, N, E)` the weighted sum of values, `(B · H, 1, N, 1)` the sum of weights, and
        `(B · H, 1, N, 1)` the peak, −inf where no key is seen.
    """
    query_place = slots.split(place, fill=-2)  # (B · H, R, chunks, size, 1)
    key_place = _with_previous(query_place).mT
    near = (query_place == key_place) | (query_place == key_place + 1)
    # Slots of a bucket are in order of position: what stands before a query is earlier.
    pairs = torch.ones(slots.size, 2 * slots.size, dtype=torch.bool, device=q.device)
    earlier, later = pairs.tril(slots.size - 1), pairs.triu(slots.size + 1)
    visible = near[:, r : r + 1] & (earlier if causal else earlier | later)

    queries = slots.split(q)  # (B · H, 1, chunks, size, D)
    length = (queries.square().mean(-1, keepdim=True) + 1e-6).sqrt() * math.sqrt(q.shape[3])
    scores = queries @ _with_previous(queries / length).mT  # (B · H, 1, chunks, size, 2 · size)
    scores = scores.masked_fill(~visible, -torch.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    meetings = near.sum(1, keepdim=True, dtype=torch.uint8).clamp(min=1)
    weights = (scores - or_zero(peak)).exp() / meetings
    sums = weights @ _with_previous(slots.split(v))  # (B · H, 1, chunks, size, E)
    return slots.join(sums), slots.join(weights.sum(-1, keepdim=True)), slots.join(peak)


def _with_previous(x: Tensor) -> Tensor:
    """`(…, chunks, size, D)` → `(…, chunks, 2 · size, D)`: each chunk after the one before.

    The first comes after the last, which is near to it in no place.
    """
    return torch.cat([x.roll(1, -3), x], -2)
