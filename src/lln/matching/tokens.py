"""Sums over the real tokens of each sequence, be the batch padded or packed."""

import torch
from torch import Tensor

from lln.functional.slots import assign

CHUNK = 64  # packed sequences are summed in chunks of this many tokens


class Tokens:
    """Real tokens in chunks `(B, H, M, c, D)`, zeros elsewhere, and sums over each sequence.

    A padded batch has one chunk per row; packed sequences have several each.

    Attributes:
        x: the tokens.
        keep: where they are, `(B, 1, M, c, 1)` bool; None where there is nothing else.
        count: `(rows, 1)` how many they are.
        length: `(rows, 1)` how many the sequence has.
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
        self.length = self.count

    @classmethod
    def sample(
        cls, x: Tensor, keep: Tensor | None, cu_seqlens: Tensor | None, size: int, whole: int
    ) -> "Tokens":
        """All tokens of a sequence of up to `whole`; of a longer one `size`, spread evenly.

        `size` should be a prime number: then a sample falls in step with no period that the data
        may have.
        """
        n, exporting = x.shape[2], torch.compiler.is_exporting()  # where n may be anything
        if not exporting and n <= whole:
            return cls(x, keep, cu_seqlens)
        if cu_seqlens is not None:
            tokens = cls(x, keep, cu_seqlens)
            rows = tokens._chunk_row
            return tokens if rows is None else tokens._thinned_out(rows, size, whole)
        if keep is None and not exporting:
            position = torch.arange(0, size * n, n, device=x.device) // size
            tokens = cls(x.index_select(2, position), None, None)
            tokens.length = torch.full_like(tokens.count, n)
            return tokens
        if keep is None:
            keep = torch.ones(x.shape[0], n, dtype=torch.bool, device=x.device)
        count, index = keep.sum(1, keepdim=True), torch.arange(whole, device=x.device)
        taken = count.where(count <= whole, size)
        rank = index * count // taken.clamp(min=1)  # among the real tokens: (B, whole)
        position = torch.searchsorted(keep.cumsum(1), rank + 1).clamp(max=n - 1)
        position = position[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
        tokens = cls(x.gather(2, position), index < taken, None)
        tokens.length = count.to(x.dtype)
        return tokens

    def _thinned_out(self, chunk_row: Tensor, size: int, whole: int) -> "Tokens":
        """What `sample` takes of packed sequences."""
        chunk = torch.arange(chunk_row.shape[0], device=self.x.device)
        chunk = chunk - torch.searchsorted(chunk_row, chunk_row)  # in its sequence
        rank = chunk[:, None] * CHUNK + torch.arange(CHUNK, device=self.x.device)  # (M, c)
        taken = self.count.where(self.count <= whole, size)  # (rows, 1)
        row = chunk_row.clamp(max=self._rows - 1)
        of, count = (x[row].long().clamp(min=1) for x in (taken, self.count))  # (M, 1)
        nearest = (rank * of + count - 1) // count  # the first of the sample at or after it
        is_taken = (nearest * count // of == rank).unsqueeze(-1)  # (M, c, 1)
        self.keep = is_taken if self.keep is None else self.keep & is_taken
        self.x, self.count = self.blank(self.x, 0), taken
        return self

    @property
    def complete(self) -> bool:
        """Whether these are all tokens of their sequences, as far as shapes tell."""
        return self.count is self.length

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

    def average(self, sums: Tensor) -> Tensor:
        """Sums over the tokens of a chunk `(B, H, M, ...)` as means over them all."""
        per_row = self.per_row(sums)
        if self.keep is None:
            return per_row / max(self.x.shape[-2], 1)
        return per_row / self.count.clamp(min=1).view(-1, *[1] * (per_row.dim() - 1))

    def mean(self) -> Tensor:
        """The mean token, `(rows, H, D)`."""
        return self.average(self.x.sum(-2))

    def mean_square(self, about: Tensor | None = None) -> Tensor:
        """The mean square of all numbers, `(rows, H)`; see `second_moment`."""
        squares = torch.linalg.vector_norm(self._about(about), dim=(-2, -1)).square()
        return self.average(squares) / self.x.shape[-1]

    def second_moment(self, about: Tensor | None = None) -> Tensor:
        """The mean of x xᵀ, `(rows, H, D, D)`, with `about` `(rows, H, D)` taken off x."""
        x = self._about(about)
        return self.average(x.mT @ x)

    def _about(self, center: Tensor | None) -> Tensor:
        return self.x if center is None else self.blank(self.x - self.spread(center), 0)
