"""Block-diagonal attention: softmax attention within blocks of neighbours, O(N · block size).

The second half of LLN+Diag (section 4.2 of the paper, after Qin et al. 2022b). Blocks are counted
over the real tokens of each sequence: neither padding nor packing moves a token to another block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.functional.block_softmax import BlockSoftmax, is_for
from lln.functional.checks import check_attention, check_positive
from lln.functional.slots import Slots, assign, split


def block_diagonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_size: int = 64,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention of each query over the keys of its own block; the last may be shorter.

    For N_q ≠ N_k the sequences are aligned at their ends: with `causal`, query i stands where key
    i + N_k − N_q stands; otherwise the last query stands where the last *real* key stands.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`, H a multiple of H_kv.
        v: `(B, H_kv, N_k, E)`.
        block_size: tokens per block.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: within its block, a query sees no later key.
        cu_seqlens: `(S + 1,)` bounds of sequences packed into one row.
        scale: 1/√D by default.

    Returns:
        `(B, H, N_q, E)`, in q's dtype. A query that stands at padding, or before the first key,
        is in no block and gets 0.
    """
    return attend_in_blocks(q, k, v, block_size, key_mask, causal, cu_seqlens, scale)[0]


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_size: int,
    key_mask: Tensor | None,
    causal: bool,
    cu_seqlens: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor | None]:
    """`block_diagonal_attention`, and `(B, N_q)` which queries are in a block (None = all)."""
    check_attention(q, k, v, key_mask=key_mask, cu_seqlens=cu_seqlens)
    check_positive("block_size", block_size)
    n_q, n_k = q.shape[2], k.shape[2]
    if n_q == 0 or n_k == 0:
        nowhere = torch.zeros(q.shape[0], n_q, dtype=torch.bool, device=q.device)
        return q.new_zeros(*q.shape[:3], v.shape[3]), nowhere
    if key_mask is None and cu_seqlens is None and n_q == n_k:
        if is_for(q, block_size):
            rows = q.unflatten(1, (k.shape[1], -1))  # (B, H_kv, G, N, D)
            scale = q.shape[3] ** -0.5 if scale is None else scale
            out: Tensor = BlockSoftmax.apply(  # type: ignore[no-untyped-call]
                rows, k.unsqueeze(2), v.unsqueeze(2), block_size, causal, scale
            )
            return out.flatten(1, 2), None
        filled = None
        if torch.compiler.is_exporting() or n_k % block_size:
            filled = split(q.new_ones(1, 1, n_k, 1), block_size)[:, 0, :, :, 0] > 0
        blocks = (split(q, block_size), split(k, block_size), split(v, block_size))
        out = _attend(*blocks, filled, causal, scale)
        return out.flatten(2, 3)[:, :, :n_q], None

    keep = q.new_ones(q.shape[0], n_k, dtype=torch.bool) if key_mask is None else key_mask
    keys = assign(keep, block_size, cu_seqlens)[0]
    queries = _stand(keys, keep, n_q, causal)
    out = _attend(queries.split(q), keys.split(k), keys.split(v), keys.filled, causal, scale)
    return queries.join(out), queries.placed


def _stand(keys: Slots, keep: Tensor, n_q: int, causal: bool) -> Slots:
    """The slots in which the queries stand."""
    n_k = keep.shape[1]
    if n_q == n_k:
        return keys
    nowhere = keys.chunks * keys.size
    if causal:
        slot = F.pad(keys.slot, (max(n_q - n_k, 0), 0), value=nowhere)[:, -n_q:]
    else:
        slot = keep.sum(1, keepdim=True) - n_q + torch.arange(n_q, device=keep.device)
        slot = slot.masked_fill(slot < 0, nowhere)
    return keys._replace(slot=slot)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, filled: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """SDPA over blocks `(B, H, M, size, D)`, with `filled` `(B or 1, M, size)`.

    Blocks become the batch: SDPA returns tokens first, heads second, so that they are put side by
    side without a copy; nor do tensors of such a layout, as layers have them, need one before.
    """
    batch, heads, blocks, size, _ = q.shape
    kv_heads = k.shape[1]
    groups = heads // kv_heads
    # The heads of a group are further queries of one block, so keys are shared, not repeated.
    q = q.unflatten(1, (kv_heads, groups)).permute(0, 3, 1, 2, 4, 5).flatten(3, 4)
    k, v = k.transpose(1, 2), v.transpose(1, 2)  # (B, M, H_kv, size, D); q has G · size rows
    visible = None if filled is None else filled.expand(batch, -1, -1).flatten(0, 1)[:, None, None]
    if causal:
        lower = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        lower = lower.repeat(groups, 1)  # (G · size, size)
        visible = lower if visible is None else visible & lower
    out = F.scaled_dot_product_attention(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=visible, scale=scale
    )  # (B · M, H_kv, G · size, E)
    out = out.unflatten(0, (batch, blocks)).unflatten(3, (groups, size)).permute(0, 2, 3, 1, 4, 5)
    joined: Tensor = out.flatten(1, 2).to(q.dtype)  # (B, H, M, size, E)
    return joined
