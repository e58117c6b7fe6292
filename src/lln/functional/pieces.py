"""Cutting tensors into pieces that stay in the cache of a CPU while they are worked on.

Batch and heads are cut into *stacks*, and the tokens of a stack into *spans*. A piece should lie
together in memory, so heads are cut only where they lie one after another; in the layers of most
models tokens do, and a token has all its heads beside it. Elsewhere, and for a compiler, which
makes its own pieces, everything is one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lln.functional.slots import count_chunks

TILE = 64  # tokens
SPAN = 2**21  # numbers that are worked on at a time: 8 MiB
LARGE = 2**19  # numbers; with fewer, looking at them takes longer than it saves

Stack = tuple[slice, slice]  # of the batch and of the heads


def stacks(x: Tensor) -> list[Stack]:
    """Cuts `(B, H, ..., N, D)` along B and H, in order; a piece may be larger than the cache."""
    batch, heads = x.shape[:2]
    if _fits(x, 1):
        return [(slice(0, batch), slice(0, heads))]
    row = x.numel() // batch
    at_once = [slice(0, heads)]
    if row > SPAN and x.stride(1) > x.stride(-2):
        threads = torch.get_num_threads()  # which share a batch of products head by head
        at_once = _evenly(heads, SPAN * heads // row, threads)
    return [(b, h) for b in _evenly(batch, SPAN // row) for h in at_once]


def of(stack: Stack, *tensors: Tensor | None) -> list[Any]:
    """What `stack` has of each tensor `(B, H, ...)`; None stays None."""
    return [None if x is None else x[stack] for x in tensors]


def join(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """One tensor of what there is for each stack of `like`."""
    if len(parts) == 1:
        return parts[0]
    joined: Tensor = torch.cat([x.flatten(0, 1) for x in parts]).unflatten(0, like.shape[:2])
    return joined


def spans(x: Tensor, tile: int = TILE, together: int = 1) -> list[slice]:
    """Cuts `(..., N, D)` along N.

    Args:
        x: what is cut.
        tile: all pieces but the last have a multiple of so many tokens.
        together: so many tensors of the size of `x` share the cache.
    """
    n = x.shape[-2]
    if _fits(x, together):
        return [slice(0, n)]
    pieces = count_chunks(together * x.numel(), SPAN)
    return _evenly(n, count_chunks(n, pieces), tile)


def room_for(*tensors: Tensor) -> Tensor | None:
    """Memory for one piece at a time, the same for all, so that it stays in the cache.

    None if each tensor is but one piece: then its results go anywhere.
    """
    if all(_fits(x, 1) for x in tensors):
        return None
    return tensors[0].new_empty(max(map(_size_of_piece, tensors)))


def _size_of_piece(x: Tensor) -> int:
    stack = x[stacks(x)[0]]  # the first pieces are the largest
    return stack[..., spans(stack)[0], :].numel()


def within(room: Tensor | None, part: Tensor) -> Tensor | None:
    """Where a result of the size of `part` goes: into `room`, or, without one, anywhere."""
    return None if room is None else room[: part.numel()].view(part.shape)


def pays_to_look(x: Tensor) -> bool:
    """Whether to look at values in order to save work on `x`.

    It has to be large, and neither a device nor a compiler may have to wait for the answer.
    """
    return _at_hand(x) and x.numel() >= LARGE


def _at_hand(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _fits(x: Tensor, together: int) -> bool:
    return not _at_hand(x) or together * x.numel() <= SPAN


def _evenly(count: int, most: int, unit: int = 1) -> list[slice]:
    """Cuts `count` into pieces of at most `most`, all but the last one a multiple of `unit`."""
    most = max(most // unit, 1) * unit
    size = count_chunks(count, count_chunks(count, most) * unit) * unit
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]
