"""Block-diagonal attention (Qin et al. 2022b; section 4.2 of the LLN paper), O(N · block size)."""

from torch import Tensor

from lln.attention.base import Attention
from lln.functional import block_diagonal_attention
from lln.functional.checks import check_positive
from lln.registry import register


@register("block_diag", paper="Qin et al. 2022b", complexity="O(N)")
class BlockDiagAttention(Attention):
    """Softmax attention within blocks of neighbouring tokens.

    Args:
        block_size: tokens per block.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        block_size: int = 64,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        check_positive("block_size", block_size)
        self.block_size = block_size

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
        return block_diagonal_attention(
            q,
            k,
            v,
            block_size=self.block_size,
            key_mask=key_mask,
            causal=causal,
            cu_seqlens=cu_seqlens,
            scale=self.scale,
        )
