"""LLN+Diag (section 4.2, Figure 3): LLN for the long range, blocks of softmax for the short."""

from typing import NamedTuple

from torch import Tensor

from lln.functional.blocks import attend_in_blocks
from lln.functional.lln import Factor, lln_attention
from lln.functional.recurrent import (
    BlockState,
    LLNState,
    block_diagonal_recurrent,
    lln_recurrent,
)


class LLNDiagState(NamedTuple):
    """The states of both branches."""

    lln: LLNState
    block: BlockState

    def reorder(self, index: Tensor) -> "LLNDiagState":
        """The state of the batch `[batch[i] for i in index]`."""
        return LLNDiagState(self.lln.reorder(index), self.block.reorder(index))


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Factor,
    beta: Factor,
    *,
    block_size: int = 64,
    lln_share: Factor = 0.5,
    diag_share: Factor = 0.5,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    key_shift: Tensor | None = None,
    scale: float | None = None,
    chunk_size: int = 64,
) -> Tensor:
    """lln_share · LLN + diag_share · block-diagonal attention.

    A query that is in no block (see `block_diagonal_attention`) takes both shares from LLN.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        v: `(B, H_kv, N_k, E)`.
        alpha: as in `lln_attention`.
        beta: as in `lln_attention`.
        block_size: tokens per block.
        lln_share: a number, or a tensor that broadcasts to the output.
        diag_share: likewise.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: query i sees the keys up to i + N_k − N_q.
        cu_seqlens: `(S + 1,)` bounds of sequences packed into one row.
        key_shift: as in `lln_attention`.
        scale: of the softmax within blocks, 1/√D by default.
        chunk_size: as in `lln_attention`.
    """
    far = lln_attention(
        q,
        k,
        v,
        alpha,
        beta,
        key_mask=key_mask,
        causal=causal,
        cu_seqlens=cu_seqlens,
        key_shift=key_shift,
        chunk_size=chunk_size,
    )
    near, placed = attend_in_blocks(q, k, v, block_size, key_mask, causal, cu_seqlens, scale)
    if placed is not None:
        near = near.where(placed[:, None, :, None], far)
    return _combine(far, near, lln_share, diag_share).to(q.dtype)


def _combine(far: Tensor, near: Tensor, lln_share: Factor, diag_share: Factor) -> Tensor:
    learned = isinstance(lln_share, Tensor) or isinstance(diag_share, Tensor)
    if not learned and lln_share == diag_share:
        return (far + near) * lln_share  # one pass less, here and in the backward
    return lln_share * far + diag_share * near


def lln_diag_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Factor,
    beta: Factor,
    state: LLNDiagState | None = None,
    *,
    block_size: int = 64,
    lln_share: Factor = 0.5,
    diag_share: Factor = 0.5,
    key_mask: Tensor | None = None,
    key_shift: Tensor | None = None,
    scale: float | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, LLNDiagState]:
    """Causal LLN+Diag of new tokens that follow `state`; see `lln_recurrent`."""
    past, block = (None, None) if state is None else state
    far, past = lln_recurrent(
        q,
        k,
        v,
        alpha,
        beta,
        past,
        key_mask=key_mask,
        key_shift=key_shift,
        chunk_size=chunk_size,
    )
    near, block = block_diagonal_recurrent(
        q, k, v, block, block_size=block_size, key_mask=key_mask, scale=scale
    )
    if key_mask is not None:
        near = near.where(key_mask[:, None, :, None], far)
    out = _combine(far, near, lln_share, diag_share).to(q.dtype)
    return out, LLNDiagState(past, block)
