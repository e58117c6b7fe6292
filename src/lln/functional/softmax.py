"""Softmax attention (Eq. 1), O(N²): the reference that the linear mechanisms emulate."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.functional.checks import check_attention


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ) v through `scaled_dot_product_attention`.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`, H a multiple of H_kv.
        v: `(B, H_kv, N_k, E)`.
        key_mask: `(B, N_k)` bool, True = keep. Padding may hold anything, NaN included.
        causal: query i sees the keys up to i + N_k − N_q (aligned bottom-right).
        cu_seqlens: `(S + 1,)` bounds of sequences packed into one row.
        scale: 1/√D by default.

    Returns:
        `(B, H, N_q, E)`, in q's dtype. A query that sees no key gets 0.
    """
    check_attention(q, k, v, key_mask=key_mask, cu_seqlens=cu_seqlens)
    n_q, n_k = q.shape[2], k.shape[2]
    visible = visible_pairs(
        n_q, n_k, q.device, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens
    )
    if key_mask is not None:
        k, v = blank(k, key_mask), blank(v, key_mask)
    dim, dim_v = q.shape[3], v.shape[3]
    if dim != dim_v:  # torch streams equal widths alone; others form an N × N matrix
        scale = dim**-0.5 if scale is None else scale
        q, k, v = (F.pad(x, (0, max(dim, dim_v) - x.shape[3])) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[..., :dim_v].to(q.dtype)


def visible_pairs(
    n_q: int,
    n_k: int,
    device: torch.device,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor | None:
    """Which query sees which key, `(B or 1, 1, N_q or 1, N_k)` bool; None if all see all.

    causal with N_q = 2, N_k = 4:   1 1 1 0      and N_q = 3, N_k = 2:   0 0
                                    1 1 1 1                              1 0
                                                                         1 1
    """
    visible = None
    if causal:
        visible = torch.ones(n_q, n_k, dtype=torch.bool, device=device).tril(n_k - n_q)[None, None]
    if cu_seqlens is not None:
        position = torch.arange(n_k, device=device)
        sequence = torch.searchsorted(cu_seqlens.long(), position, right=True)
        real = (sequence > 0) & (sequence < cu_seqlens.shape[0])
        same = ((sequence[:, None] == sequence) & real)[None, None]
        visible = same if visible is None else visible & same
    if key_mask is not None:
        keep = key_mask[:, None, None, :]
        visible = keep if visible is None else visible & keep
    return visible


def blank(x: Tensor, key_mask: Tensor) -> Tensor:
    """`x` `(B, H, N, D)` with zeros at padding: a weight of 0 does not silence a NaN."""
    return x.masked_fill(~key_mask[:, None, :, None], 0)


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the last dimension, of what is visible; a row that sees nothing is 0.

    −inf would make such a row NaN, and its gradient too. The lowest number of the dtype, whose exp
    is 0 beside any score, does not, and what it weighs in such a row is then taken out.
    """
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~visible, lowest).softmax(-1).masked_fill(~visible, 0)
