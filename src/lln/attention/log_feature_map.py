"""Linear attention by features that are exponentials: what its members share.

Φ = exp(log Φ), so the attention is LLN's with log Φ in place of α q and β k: the same two
softmaxes, exact at any scale, with neither the maxima over a sequence nor the eps that others need.
"""

from torch import Tensor

from lln.attention.base import Attention
from lln.functional import lln_attention
from lln.functional.precision import no_autocast, upcast


class LogFeatureAttention(Attention):
    """Linear attention; a subclass names the logarithms of its feature maps."""

    def log_query_features(self, q: Tensor) -> Tensor:
        """Log Φ(q), `(B, H, N, D)` → `(B, H, N, F)`; q is float32 or float64."""
        raise NotImplementedError

    def log_key_features(self, k: Tensor) -> Tensor:
        """Log Φ(k), `(B, H_kv, N, D)` → `(B, H_kv, N, F)`."""
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
        with no_autocast(q.device):
            return lln_attention(
                self.log_query_features(upcast(q)),
                self.log_key_features(upcast(k)),
                upcast(v),
                alpha=1.0,
                beta=1.0,
                key_mask=key_mask,
                causal=causal,
                cu_seqlens=cu_seqlens,
            ).to(q.dtype)
