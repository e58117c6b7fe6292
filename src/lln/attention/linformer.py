"""Linformer (Wang et al. 2020, arXiv 2006.04768), O(N · R · D) with rank R.

softmax(q (E k)ᵀ / √D) F v (Eq. 7): learned matrices E and F of R rows project keys and values along
the sequence. A sequence shorter than `max_len` uses their first columns.

As in the authors' code, all heads share E and F, which differ (the paper's headwise sharing) and
start uniform (Xavier, gain 1/√2). Deviations: E and F act on projected keys and values, as in the
equation, where that code has them act on tokens, before the projections and their biases. Padding
adds nothing to the sums that they form.
"""

import math

import torch
from torch import Tensor, nn

from lln.attention.sequence import SequenceAttention
from lln.functional import softmax_attention
from lln.functional.checks import check_positive
from lln.registry import register


@register(
    "linformer",
    paper="Wang et al. 2020",
    complexity="O(N)",
    causal=False,
    row_stochastic=False,
)
class LinformerAttention(SequenceAttention):
    """Softmax attention to learned projections of the keys and values of a sequence.

    Args:
        max_len: the longest sequence; needed.
        rank: how many projected keys there are, R.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        max_len: int | None = None,
        rank: int = 256,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        if max_len is None:
            raise ValueError("linformer needs max_len, the length of the longest sequence")
        check_positive("max_len", max_len)
        check_positive("rank", rank)
        self.max_len = max_len
        self.project_keys = nn.Parameter(torch.empty(rank, max_len))
        self.project_values = nn.Parameter(torch.empty(rank, max_len))
        for projection in (self.project_keys, self.project_values):
            nn.init.xavier_uniform_(projection, gain=1 / math.sqrt(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        n = k.shape[2]
        if n > self.max_len:
            raise ValueError(f"linformer was built for max_len={self.max_len}, got N={n}")
        k = torch.einsum("rn,bhnd->bhrd", self.project_keys[:, :n].to(k.dtype), k)
        v = torch.einsum("rn,bhnd->bhrd", self.project_values[:, :n].to(v.dtype), v)
        return softmax_attention(q, k, v, scale=self.scale)
