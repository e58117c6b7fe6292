"""One sequence per row, real tokens first: the layout for mechanisms to which positions matter.

Whatever moves a token away from its position in its own sequence (padding on the left, holes,
packing) is undone here, once for all of them, so that a mechanism sees padding on the right only.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.functional.slots import Slots, assign


class Rows(NamedTuple):
    """Where each token of a batch goes.

    Attributes:
        slots: a chunk for each sequence, as long as the longest.
    """

    slots: Slots

    @property
    def keep(self) -> Tensor:
        """`(R, L)` bool: a token is there; in each row all True come first."""
        return self.slots.filled.flatten(0, 1)

    def take(self, x: Tensor) -> Tensor:
        """`(B, H, N, D)` → `(R, H, L, D)`, zeros where no token is."""
        return self.slots.split(x).transpose(1, 2).flatten(0, 1)

    def put(self, x: Tensor) -> Tensor:
        """`(R, H, L, D)` → `(B, H, N, D)`, zeros for tokens that belong to no sequence."""
        parts: Tensor = x.unflatten(0, (-1, self.slots.chunks))
        return self.slots.join(parts.transpose(1, 2))


def rows(keep: Tensor, cu_seqlens: Tensor | None = None) -> Rows:
    """Gives each sequence a row.

    Args:
        keep: `(B, N)` bool, the real tokens.
        cu_seqlens: `(S + 1,)` bounds of packed sequences. Their longest decides the shapes, so this
            waits for the device.
    """
    if cu_seqlens is None:
        return Rows(assign(keep, max(keep.shape[1], 1))[0])
    sequences, longest = cu_seqlens.shape[0] - 1, max(int(cu_seqlens.diff().max()), 1)
    slots = assign(keep, longest, cu_seqlens)[0]
    # Where each sequence fits into one chunk, there are no more chunks than sequences.
    slot = slots.slot.clamp(max=sequences * longest)
    return Rows(Slots(slot, sequences, longest))


def all_real(batch: int, n: int, device: torch.device) -> Tensor:
    """`(B, N)` the mask of a batch without padding."""
    return torch.ones(batch, n, dtype=torch.bool, device=device)
