"""Sums over the real tokens of each sequence, be the batch padded or packed."""

import torch
from torch import Tensor

from lln.functional.slots import assign

CHUNK = 64  # packed sequences are summed in chunks of this many tokens


class Tokens:
    """Real tokens in chunks `(B, H, M, c, D)`, zeros elsewhere, and sums over each sequence.

    A padded batch has one chunk per row; packed sequences have several each.
    """

    def __init__(self, x: Tensor, keep: Tensor | None, cu_seqlens: Tensor | None) -> None:
        self._chunk_row: Tensor | None = None
        self.keep: Tensor | None = None
        if cu_seqlens is not None:
            if keep is None:
                keep = torch.ones(1, x.shape[2], dtype=torch.bool, device=x.device)
            slots, chunk_row = assign(keep, CHUNK, cu_seqlens)
            self._chunk_row, self._rows = chunk_row[0], cu_seqlens.shape[0] - 1
            self.x, self.keep = slots.split(x), slots.filled[:, None, :, :, None]
            self.count = self.per_row(self.keep.sum((-2, -1)).to(x.dtype))  # (rows, 1)
        elif keep is not None:
            self.keep = keep[:, None, None, :, None]
            self.x = x.unsqueeze(2).masked_fill(~self.keep, 0)
            self.count = keep.sum(1, keepdim=True).to(x.dtype)
        else:
            self.x = x.unsqueeze(2)
            self.count = x.new_full((x.shape[0], 1), x.shape[2])

    def per_row(self, chunks: Tensor) -> Tensor:
        """Sums `(B, H, M, ...)` over the chunks of each sequence: `(rows, H, ...)`."""
        if self._chunk_row is None:
            return chunks.squeeze(2)
        spare = 1  # a row for chunks that belong to no sequence
        total = chunks.new_zeros(self._rows + spare, chunks.shape[1], *chunks.shape[3:])
        return total.index_add(0, self._chunk_row, chunks[0].transpose(0, 1))[: self._rows]

    def per_row_max(self, chunks: Tensor) -> Tensor:
        """Largest values of `(B, H, M, D)` among the chunks of each sequence: `(rows, H, D)`."""
        if self._chunk_row is None:
            return chunks.squeeze(2)
        chunks = chunks[0].transpose(0, 1)  # (M, H, D)
        largest = chunks.new_full((self._rows + 1, *chunks.shape[1:]), -torch.inf)
        index = self._chunk_row[:, None, None].expand_as(chunks)
        return largest.scatter_reduce(0, index, chunks, "amax")[: self._rows]

    def spread(self, value: Tensor) -> Tensor:
        """A value per sequence `(rows, H, X)` for each of its tokens: `(B, H, M or 1, 1, X)`."""
        if self._chunk_row is None:
            return value[:, :, None, None]
        return value[self._chunk_row.clamp(max=self._rows - 1)].transpose(0, 1)[None, :, :, None]

    def blank(self, x: Tensor, value: float) -> Tensor:
        """`x` `(B, H, M, c, X)` with `value` where there is no real token."""
        return x if self.keep is None else x.masked_fill(~self.keep, value)

    def subtract(self, value: Tensor) -> None:
        """Takes `(rows, H, D)` off every token."""
        self.x = self.blank(self.x - self.spread(value), 0)

    def mean(self) -> Tensor:
        """The mean token, `(rows, H, D)`."""
        return self.per_row(self.x.sum(-2)) / self.count.clamp(min=1).unsqueeze(-1)

    def squares(self) -> Tensor:
        """Sum of squares, `(rows, H)`."""
        return self.per_row(torch.linalg.vector_norm(self.x, dim=(-2, -1)).square())

    def gram(self) -> Tensor:
        """Σ x xᵀ, `(rows, H, D, D)`."""
        return self.per_row(self.x.mT @ self.x)
