"""Softmax attention (Vaswani et al. 2017; Eq. 1 of the LLN paper), O(N²)."""

from torch import Tensor

from lln.attention.base import Attention
from lln.functional import softmax_attention
from lln.registry import register


@register("softmax", paper="Vaswani et al. 2017", complexity="O(N²)")
class SoftmaxAttention(Attention):
    """softmax(q kᵀ / √D) v, the attention that the others emulate."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        return softmax_attention(
            q, k, v, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens, scale=self.scale
        )
