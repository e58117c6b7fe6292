"""cosFormer (Qin et al. 2022a, arXiv 2202.08791), O(N · D²).

Weights relu(q_i)ᵀrelu(k_j) · cos(π (i − j) / 2M) (section 3.2), which takes itself apart into
cosines and sines of i and of j: linear attention with twice the features.

Deviations: M is the number of real tokens of a sequence, as the authors' code has it for batches
without padding. The causal form needs `max_len` for M: a length that is not known yet would let the
future re-weight the past. No eps: a query with no weight on any key gets 0.
"""

import math

import torch
from torch import Tensor

from lln.attention.sequence import SequenceAttention
from lln.functional import linear_attention
from lln.registry import register


@register("cosformer", paper="Qin et al. 2022a", complexity="O(N)")
class CosformerAttention(SequenceAttention):
    """Linear attention with ReLU features that favours near tokens by a cosine.

    Args:
        max_len: M, the length over which weights fall to 0; a sequence's own length by default.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        max_len: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads)
        self.max_len = max_len

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        angle = self._angles(keep, causal).to(q.dtype)[:, None, :, None]  # (B or 1, 1, N, 1)
        phi_q, phi_k = (
            torch.cat([x.relu() * angle.cos(), x.relu() * angle.sin()], -1) for x in (q, k)
        )  # (B, H, N, 2 D)
        return linear_attention(phi_q, phi_k, v, key_mask=keep, causal=causal)

    def _angles(self, keep: Tensor, causal: bool) -> Tensor:
        """π i / 2M for each token."""
        n = keep.shape[1]
        position = torch.arange(n, device=keep.device)[None]
        if self.max_len is None:
            if causal:
                raise ValueError("cosformer needs max_len for its causal form")
            longest = keep.sum(1, keepdim=True).clamp(min=1)
            # Padding has no weight, but an angle it has.
            return math.pi / 2 * (position / longest).clamp(max=1)
        if n > self.max_len:
            raise ValueError(f"cosformer was built for max_len={self.max_len}, got N={n}")
        return math.pi / 2 * position / self.max_len
