"""Cutting sequences into chunks that never cross a boundary, and putting them back together.

Packed batches, padded batches and block-diagonal attention share one need: each sequence has to be
cut into chunks of a fixed size, counted from its own first real token. A *slot* is a place in
such a chunk. All sizes follow from shapes alone, so nothing here waits for the device.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def count_chunks(n: int, size: int) -> int:
    """⌈n / size⌉ chunks hold n tokens.

    While exporting there is one more: with n unknown, torch has to know that a dimension is not 1,
    or it would bake in whether this one is.
    """
    spare = size if torch.compiler.is_exporting() else 0
    return (n + spare + size - 1) // size


def split(x: Tensor, size: int, fill: float = 0.0) -> Tensor:
    """`(B, H, N, D)` → `(B, H, ⌈N / size⌉, size, D)`, `fill` after the end."""
    n = x.shape[-2]
    chunks = count_chunks(n, size)
    # Padding copies, even by nothing; a compiler needs to see it, or it would bake in the length.
    if torch.compiler.is_compiling() or chunks * size != n:
        x = F.pad(x, (0, 0, 0, chunks * size - n), value=fill)
    parts: Tensor = x.unflatten(-2, (chunks, size))
    return parts


class Slots(NamedTuple):
    """A slot for each token of a batch.

    Attributes:
        slot: `(B, N)` the token's slot; `chunks · size` for a token that has none.
        chunks: how many chunks there are.
        size: slots per chunk.
    """

    slot: Tensor
    chunks: int
    size: int

    @property
    def placed(self) -> Tensor:
        """`(B, N)` bool: the token has a slot."""
        return self.slot < self.chunks * self.size

    @property
    def filled(self) -> Tensor:
        """`(B, chunks, size)` bool: the slot has a token."""
        filled: Tensor = self._into_slots(self.placed).unflatten(1, (self.chunks, self.size))
        return filled

    def _into_slots(self, per_token: Tensor) -> Tensor:
        # One slot too many takes the tokens that have none, and is cut off.
        per_slot = per_token.new_zeros(per_token.shape[0], self.chunks * self.size + 1)
        return per_slot.scatter(1, self.slot, per_token)[:, :-1]

    def split(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """`(B, H, N, D)` → `(B, H, chunks, size, D)`; empty slots hold `fill`."""
        batch, heads, n, dim = x.shape
        positions = torch.arange(n, device=x.device).expand(batch, n)
        token = self._into_slots(positions)[:, None, :, None]  # (B, 1, slots, 1)
        x = x.gather(2, token.expand(batch, heads, -1, dim))  # (B, H, slots, D)
        x = x.unflatten(2, (self.chunks, self.size))
        return x.masked_fill(~self.filled[:, None, :, :, None], fill)

    def join(self, x: Tensor) -> Tensor:
        """`(B, H, chunks, size, D)` → `(B, H, N, D)`; zeros for tokens without a slot."""
        batch, heads, dim = x.shape[0], x.shape[1], x.shape[4]
        slot = self.slot.clamp(max=self.chunks * self.size - 1)[:, None, :, None]
        x = x.flatten(2, 3).gather(2, slot.expand(batch, heads, -1, dim))
        return x.masked_fill(~self.placed[:, None, :, None], 0)


def assign(keep: Tensor, size: int, cu_seqlens: Tensor | None = None) -> tuple[Slots, Tensor]:
    """Gives each kept token a slot, counted over the kept tokens of its own sequence.

    Args:
        keep: `(B, N)` bool, the tokens that get a slot.
        size: slots per chunk.
        cu_seqlens: `(S + 1,)` bounds of packed sequences; without it a row is one sequence.

    Returns:
        The slots, and `(B, chunks)` the sequence that each chunk belongs to (S for spare chunks).
    """
    batch, n = keep.shape
    position = torch.arange(n, device=keep.device)
    if cu_seqlens is None:
        bounds = torch.arange(2, device=keep.device) * n
        chunks = count_chunks(n, size)
    else:
        bounds = cu_seqlens.long()
        chunks = n // size + bounds.shape[0] - 1  # at most one ragged chunk per sequence
    sequences = bounds.shape[0] - 1
    sequence = torch.searchsorted(bounds, position, right=True) - 1  # (N,)
    inside = (sequence >= 0) & (sequence < sequences)
    sequence = sequence.clamp(0, sequences - 1)

    kept_before = F.pad((keep & inside).cumsum(1), (1, 0))  # (B, N + 1)
    at_bounds = kept_before[:, bounds]  # (B, S + 1)
    chunk_ends = (-(-at_bounds.diff(dim=1) // size)).cumsum(1)  # (B, S)
    first_chunk = F.pad(chunk_ends, (1, 0))[:, sequence]  # (B, N)
    slot = first_chunk * size + kept_before[:, :-1] - at_bounds[:, sequence]
    slot = slot.masked_fill(~(keep & inside), chunks * size)

    chunk = torch.arange(chunks, device=keep.device).expand(batch, chunks).contiguous()
    return Slots(slot, chunks, size), torch.searchsorted(chunk_ends, chunk, right=True)
