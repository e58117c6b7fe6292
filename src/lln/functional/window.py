"""Softmax attention of chunks of neighbouring queries to keys of their own, O(N · keys per chunk).

Queries that stand together see nearly the same keys, so a window that slides over the tokens is cut
into chunks: each takes the keys around it, and a mask makes the window of each query exact.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.functional.slots import count_chunks, split


class ChunkKeys(NamedTuple):
    """What the queries of each chunk see.

    Attributes:
        k: `(B, H, M, L, D)`, L keys for each of M chunks.
        v: `(B, H, M, L, E)`.
        visible: `(B, M, size or 1, L)` bool: this query of the chunk sees this key.
    """

    k: Tensor
    v: Tensor
    visible: Tensor

    def for_each(self, chunks: int) -> "ChunkKeys":
        """The keys of the only chunk, for each of so many."""
        k, v = (x.expand(-1, -1, chunks, -1, -1) for x in (self.k, self.v))
        return ChunkKeys(k, v, self.visible.expand(-1, chunks, -1, -1))

    def of_earlier(self, count: int) -> "ChunkKeys":
        """For each chunk the keys of the `count` chunks before it."""
        visible = _earlier(self.visible[:, None].mT, count)[:, 0].mT
        return ChunkKeys(_earlier(self.k, count), _earlier(self.v, count), visible)

    def beside(self, other: "ChunkKeys") -> "ChunkKeys":
        """These keys and the others, for one softmax over both."""
        queries = max(self.visible.shape[2], other.visible.shape[2])
        visible = [x.expand(-1, -1, queries, -1) for x in (self.visible, other.visible)]
        k, v = torch.cat([self.k, other.k], 3), torch.cat([self.v, other.v], 3)
        return ChunkKeys(k, v, torch.cat(visible, 3))


def _earlier(x: Tensor, count: int) -> Tensor:
    """`(B, H, M, L, D)` → `(B, H, M, count · L, D)`, zeros before the first chunk."""
    x = F.pad(x, (0, 0, 0, 0, count, -1))  # (B, H, count + M − 1, L, D)
    return x.unfold(2, count, 1).movedim(5, 3).flatten(3, 4)


def _surround(x: Tensor, size: int, before: int, after: int) -> Tensor:
    """`(B, H, N, D)` → `(B, H, ⌈N / size⌉, before + size + after, D)`, zeros beyond the ends."""
    n = x.shape[2]
    missing = count_chunks(n, size) * size - n
    x = F.pad(x, (0, 0, before, missing + after))
    return x.unfold(2, before + size + after, size).mT


def surrounding_keys(
    k: Tensor, v: Tensor, keep: Tensor, size: int, before: int, after: int
) -> ChunkKeys:
    """The keys in and around each chunk, all of them seen by all of its queries.

    Args:
        k: `(B, H, N, D)`.
        v: `(B, H, N, E)`.
        keep: `(B, N)` bool, the keys that may be seen.
        size: tokens per chunk.
        before: how many keys before the chunk's first token.
        after: how many keys after its last.
    """
    k, v, kept = (_surround(x, size, before, after) for x in (k, v, keep[:, None, :, None]))
    return ChunkKeys(k, v, kept[:, 0].mT)


def sliding_keys(
    k: Tensor, v: Tensor, keep: Tensor, size: int, before: int, after: int
) -> ChunkKeys:
    """The same, but query i sees no more than the keys from i − before to i + after."""
    keys = surrounding_keys(k, v, keep, size, before, after)
    query = torch.arange(size, device=k.device)[:, None]
    key = torch.arange(-before, size + after, device=k.device)
    in_window = (key >= query - before) & (key <= query + after)  # (size, L)
    return keys._replace(visible=keys.visible & in_window)


def attend_in_chunks(q: Tensor, keys: ChunkKeys, size: int, scale: float) -> Tensor:
    """Softmax attention of each chunk's queries to its keys.

    Args:
        q: `(B, H, N, D)`.
        keys: of ⌈N / size⌉ chunks.
        size: queries per chunk.
        scale: of the scores.

    Returns:
        `(B, H, N, E)`; 0 for a query that sees no key.
    """
    batch, _, n, _ = q.shape
    # Chunks go into the batch, so that the heads share one mask.
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (split(q, size), keys.k, keys.v))
    visible = keys.visible.flatten(0, 1)[:, None]  # (B · M, 1, size or 1, L)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    joined: Tensor = out.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
    return joined[:, :, :n]
