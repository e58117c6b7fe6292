"""Softmax attention within blocks on a CPU, with a backward that is written out.

    P = softmax(scale · q kᵀ) in each block,   out = P v

Nothing but q, k and v is kept for the backward pass, while SDPA keeps its output as well. Whatever
the layout of its inputs, a span of blocks is copied to memory that stays in the cache, where it is
one batch of products.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lln.functional.pieces import spans
from lln.functional.precision import no_autocast, upcast

LARGEST = 128  # tokens per block; with larger ones nothing is gained over SDPA
TOGETHER = 4  # tensors of a span that are worked on at a time


def is_for(x: Tensor, block_size: int) -> bool:
    """Whether blocks of `x` are best attended to here: elsewhere SDPA is faster."""
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_cpu and min(block_size, x.shape[-2]) <= LARGEST


class BlockSoftmax(torch.autograd.Function):
    """P v.

    Args:
        q: `(B, H, G, N, D)`, G rows of queries share the keys of a head.
        k: `(B, H, 1, N, D)`.
        v: `(B, H, 1, N, E)`.
        block_size: tokens per block; the last one may have fewer.
        causal: within its block, a query sees no later key.
        scale: of the scores.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, block_size: int, causal: bool, scale: float
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.block_size, ctx.causal, ctx.scale = block_size, causal, scale
        same = v.shape[-1] == q.shape[-1]  # then the layout is kept as well
        out = torch.empty_like(q) if same else q.new_empty(*q.shape[:-1], v.shape[-1])
        with no_autocast(q.device):
            for desk in _desks(q, v, block_size, rooms=5):
                q_blocks, k_blocks, v_blocks = map(desk.take, (q, k, v))
                p = desk.probabilities(q_blocks, k_blocks, causal, scale)
                desk.put(desk.product(p, v_blocks), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        d_q, d_k, d_v = map(torch.empty_like, (q, k, v))
        with no_autocast(q.device):
            for desk in _desks(q, v, ctx.block_size, rooms=9):
                q_blocks, k_blocks, v_blocks, d_out = map(desk.take, (q, k, v, grad))
                p = desk.probabilities(q_blocks, k_blocks, ctx.causal, ctx.scale)
                desk.put(desk.product(p.mT, d_out), d_v)
                d_p = desk.product(d_out, v_blocks.mT)
                d_scores = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype)
                desk.put(desk.product(d_scores, k_blocks, ctx.scale), d_q)
                desk.put(desk.product(d_scores.mT, q_blocks, ctx.scale), d_k)
        return d_q, d_k, d_v, None, None, None


class _Desk:
    """A span of blocks, and the memory in which it is worked on."""

    def __init__(self, span: slice, size: int, memory: Tensor) -> None:
        self._span, self._size, self._memory, self._used = span, size, memory, 0

    def take(self, x: Tensor) -> Tensor:
        """The blocks of `x` `(B, H, G, N, D)`, as `(blocks, G · size, D)`."""
        part = self._blocks(x)
        return self._room(*part.shape).copy_(part).flatten(0, 2).flatten(1, 2)

    def put(self, blocks: Tensor, x: Tensor) -> None:
        """Puts blocks, as `take` has them, into `x`."""
        part = self._blocks(x)
        part.copy_(blocks.view(part.shape))

    def product(self, a: Tensor, b: Tensor, scale: float = 1) -> Tensor:
        """`scale` · a b."""
        room = self._room(*a.shape[:-1], b.shape[-1])
        return torch.baddbmm(room, a, b, beta=0, alpha=scale, out=room)

    def probabilities(self, q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
        """P, `(blocks, G · size, size)`."""
        scores = self.product(q, k.mT, scale)
        if causal:
            later = torch.ones(self._size, self._size, dtype=torch.bool).triu(1)
            scores.unflatten(1, (-1, self._size)).masked_fill_(later, -torch.inf)
        return torch.softmax(scores, -1, out=scores)

    def _blocks(self, x: Tensor) -> Tensor:
        """A view `(B, H, blocks, G, size, D)`."""
        blocks: Tensor = x[..., self._span, :].unflatten(-2, (-1, self._size)).transpose(2, 3)
        return blocks

    def _room(self, *shape: int) -> Tensor:
        start, self._used = self._used, self._used + prod(shape)
        return self._memory[start : self._used].view(shape)


def _desks(q: Tensor, v: Tensor, block_size: int, rooms: int) -> Iterator[_Desk]:
    """Whole blocks, span by span, and what is left of the sequence as a shorter one."""
    n, dim = q.shape[-2:]
    whole = n // block_size * block_size
    pieces = []
    if whole:
        cut = spans(q[..., :whole, :], tile=block_size, together=TOGETHER)
        pieces = [(span, block_size) for span in cut]
    if whole < n:
        pieces.append((slice(whole, n), n - whole))
    longest = max(span.stop - span.start for span, _ in pieces)
    widest = max(dim, v.shape[-1], min(block_size, n))
    numbers = rooms * q[..., :longest, 0].numel() * widest
    memory = torch.empty(numbers, dtype=upcast(q[..., :0, :]).dtype)
    for span, size in pieces:
        yield _Desk(span, size, memory)
