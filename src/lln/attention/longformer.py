"""Longformer (Beltagy et al. 2020, arXiv 2004.05150), O(N · (window + global tokens)).

Softmax attention (Eq. 1) over the sliding window and the global tokens of section 3.1: each token
sees itself and window/2 tokens on either side; global tokens see all and are seen by all. The
causal form keeps the half of the window that lies in the past.

Deviations:
    - Global attention has no projections of its own: a core has none at all.
    - Global tokens are the first of each sequence, where the paper lets the task choose them.
    - No dilation, which the paper uses in character models alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.attention.sequence import SequenceAttention
from lln.functional.checks import check_positive
from lln.functional.window import ChunkKeys, attend_in_chunks, sliding_keys
from lln.registry import register


@register("longformer", paper="Beltagy et al. 2020", complexity="O(N)")
class LongformerAttention(SequenceAttention):
    """Softmax attention within a sliding window, and of a few global tokens.

    Args:
        window: how many neighbours a token sees, half of them on either side; even.
        global_tokens: so many tokens at the start of each sequence see all and are seen by all;
            there is no causal form with any.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        window: int = 512,
        global_tokens: int = 0,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        check_positive("window", window)
        if window % 2:
            raise ValueError(f"window must be even, half of it on either side, got {window}")
        if global_tokens != 0:
            check_positive("global_tokens", global_tokens)
        self.window, self.global_tokens = window, global_tokens

    def refuse_causal(self, causal: bool) -> None:
        super().refuse_causal(causal)
        if causal and self.global_tokens:
            raise NotImplementedError(
                f"{self.name} has no causal form with global tokens: causal must be False"
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        half = self.window // 2  # also the size of a chunk
        first = slice(self.global_tokens)
        is_global = torch.arange(keep.shape[1], device=keep.device) < self.global_tokens
        near = sliding_keys(k, v, keep & ~is_global, half, half, 0 if causal else half)
        if self.global_tokens == 0:
            return attend_in_chunks(q, near, half, self.scale)

        shared = ChunkKeys(k[:, :, None, first], v[:, :, None, first], keep[:, None, None, first])
        keys = shared.for_each(near.k.shape[2]).beside(near)
        out = attend_in_chunks(q, keys, half, self.scale)
        out_first = F.scaled_dot_product_attention(
            q[:, :, first], k, v, attn_mask=keep[:, None, None], scale=self.scale
        )
        return torch.cat([out_first, out[:, :, self.global_tokens :]], 2)
