"""Long-Short Transformer (Zhu et al. 2021, arXiv 2107.02192), O(N · (window + rank)).

One softmax over two sets of keys (section 3.4), each behind a layer norm of its own, which is the
same for keys and values:
    - short, section 3.2: tokens are cut into segments of w, and each sees its own segment and w/2
      tokens on either side of it. Causal: the last w tokens, the query's own included.
    - long, section 3.3: K̄ = Pᵀ K and V̄ = Pᵀ V with P = softmax(K W_P) over the tokens of the
      sequence, which makes r keys of it. Causal: r keys of each earlier segment.

Deviations:
    - W_P sees the keys of its own head, not the tokens: a core has only those. It has no bias,
      which a softmax over tokens would cancel.
    - A causal query sees the last `past` segments, not all, at a cost of O(N · past · rank): all of
      them would cost O(N²). The authors bound the past by the length of their cache.
    - Causal segments are as long as the window, so that no token goes unseen. The paper gives them
      a length of their own.
    - No relative positions, which the authors add in their causal models.

After the authors' code, the layer norms take all heads together, with eps = 1e-5.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention.sequence import SequenceAttention
from lln.functional.checks import check_positive
from lln.functional.slots import split
from lln.functional.softmax import masked_softmax
from lln.functional.window import ChunkKeys, attend_in_chunks, sliding_keys, surrounding_keys
from lln.registry import register


@register("transformer_ls", paper="Zhu et al. 2021", complexity="O(N)", row_stochastic=False)
class TransformerLSAttention(SequenceAttention):
    """Softmax attention to a window and to a low-rank projection of all tokens.

    Args:
        window: w, tokens per segment.
        rank: r, projected keys per sequence or, if causal, per segment.
        past: how many earlier segments a causal query sees projected.
    """

    linear_in_values = False  # they go through a layer norm

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        window: int = 128,
        rank: int = 32,
        past: int = 16,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        check_positive("window", window)
        check_positive("rank", rank)
        check_positive("past", past)
        self.window, self.past = window, past
        self.projection = nn.Parameter(torch.empty(heads, head_dim, rank))
        self.short_norm = nn.LayerNorm((heads, head_dim))
        self.long_norm = nn.LayerNorm((heads, head_dim))
        bound = 1 / math.sqrt(head_dim)  # that of nn.Linear
        nn.init.uniform_(self.projection, -bound, bound)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        if v.shape[3] != self.head_dim:
            raise ValueError(
                f"{self.name} has one layer norm for keys and values: v must have the head "
                f"dimension {self.head_dim} of k, got {v.shape[3]}"
            )
        size, half = self.window, self.window // 2
        short = _normalise(k, self.short_norm), _normalise(v, self.short_norm), keep
        if causal:
            near = sliding_keys(*short, size, size - 1, 0)
            kept = split(keep[:, None, :, None], size)[:, 0].mT  # (B, M, 1, size)
            far = self._project(split(k, size), split(v, size), kept).of_earlier(self.past)
        else:
            near = surrounding_keys(*short, size, half, half)
            far = self._project(k[:, :, None], v[:, :, None], keep[:, None, None])
            far = far.for_each(near.k.shape[2])
        return attend_in_chunks(q, far.beside(near), size, self.scale)

    def _project(self, k: Tensor, v: Tensor, kept: Tensor) -> ChunkKeys:
        """Makes r keys of each of M segments.

        Args:
            k: `(B, H, M, L, D)`.
            v: `(B, H, M, L, D)`.
            kept: `(B, M, 1, L)` bool, the real tokens.
        """
        scores = k @ self.projection.to(k.dtype)[:, None]  # (B, H, M, L, r)
        p = masked_softmax(scores.mT, kept[:, None])  # (B, H, M, r, L)
        long_k, long_v = _normalise(p @ k, self.long_norm), _normalise(p @ v, self.long_norm)
        return ChunkKeys(long_k, long_v, kept.any(3, keepdim=True).expand(-1, -1, -1, p.shape[3]))


def _normalise(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The layer norm of `(B, H, …, D)`, over all heads together."""
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    x = x.movedim(1, -2)  # (B, …, H, D)
    return F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps).movedim(-2, 1)
