"""Linear attention by a feature map Φ (Eq. 4 of the LLN paper): what its members share."""

from torch import Tensor

from lln.attention.base import Attention
from lln.functional import linear_attention
from lln.functional.precision import upcast


class FeatureMapAttention(Attention):
    """Linear attention; a subclass names its feature map Φ ≥ 0.

    There is no eps: a query with no weight on any key gets 0.
    """

    def __init__(self, heads: int, head_dim: int, *, kv_heads: int | None = None) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads)

    def features(self, x: Tensor) -> Tensor:
        """Φ(x), of queries and keys alike; x is float32 or float64."""
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
        return linear_attention(
            self.features(upcast(q)),
            self.features(upcast(k)),
            upcast(v),
            key_mask=key_mask,
            causal=causal,
            cu_seqlens=cu_seqlens,
        ).to(q.dtype)
