"""TransNormer T2: softmax attention within blocks, Φ = 1 + elu (`lln.attention.transnormer`)."""

import torch.nn.functional as F
from torch import Tensor

from lln.attention.transnormer import TransNormerMixer, merge_heads
from lln.functional import block_diagonal_attention
from lln.registry import register


@register("transnormer_t2", paper="Qin et al. 2022b", complexity="O(N)", row_stochastic=False)
class TransNormerT2Mixer(TransNormerMixer):
    """Early layers softmax attention within blocks, later ones normed linear attention by 1 + elu.

    Args:
        dim: C.
        heads: number of heads.
        layer: which of the model's `layers` this is, counted from 0.
        layers: how many there are.
        block_size: tokens per block.
    """

    def features(self, x: Tensor) -> Tensor:
        return 1 + F.elu(x)

    def diag_attention(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool
    ) -> Tensor:
        """softmax(q kᵀ / √D) v, which needs no norm."""
        return merge_heads(
            block_diagonal_attention(
                q, k, v, block_size=self.block_size, key_mask=keep, causal=causal
            )
        )
