"""Attention by a kernel of the score, O(N²), for analysis: what its members share."""

from torch import Tensor

from lln.attention.base import Attention
from lln.functional import kernel_attention


class ScoreKernelAttention(Attention):
    """Σ_j κ(s_ij) v_j / Σ_j κ(s_ij) with scores s = q kᵀ / √D; a subclass names κ ≥ 0."""

    def kernel(self, scores: Tensor) -> Tensor:
        """κ, element by element."""
        raise NotImplementedError

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
        return kernel_attention(
            q,
            k,
            v,
            self.kernel,
            key_mask=key_mask,
            causal=causal,
            cu_seqlens=cu_seqlens,
            scale=self.scale,
        )
