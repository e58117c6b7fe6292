"""Attention with any kernel of the scores, O(N²), for analysis (Figure 2 of the paper)."""

from collections.abc import Callable

from torch import Tensor

from lln.functional.checks import check_attention
from lln.functional.chunked import normalise, with_ones
from lln.functional.precision import no_autocast, upcast
from lln.functional.softmax import blank, visible_pairs


def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Callable[[Tensor], Tensor],
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Σ_j κ(q_iᵀk_j) v_j / Σ_j κ(q_iᵀk_j) for a kernel κ ≥ 0 of the scaled scores.

    Other arguments and the result as in `softmax_attention`; a query with no weight gets 0.
    """
    check_attention(q, k, v, key_mask=key_mask, cu_seqlens=cu_seqlens)
    visible = visible_pairs(
        q.shape[2], k.shape[2], q.device, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens
    )
    if key_mask is not None:
        k, v = blank(k, key_mask), blank(v, key_mask)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    with no_autocast(q.device):
        keys, values = (upcast(x).repeat_interleave(groups, dim=1) for x in (k, v))
        weight = kernel(scale * (upcast(q) @ keys.mT))  # (B, H, N_q, N_k)
        if visible is not None:
            weight = weight.masked_fill(~visible, 0)
        return normalise(weight @ with_ones(values)).to(q.dtype)
