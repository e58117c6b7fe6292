"""TransNormer T1: ReLU attention within blocks, and Φ = elu (`lln.attention.transnormer`)."""

import torch.nn.functional as F
from torch import Tensor

from lln.attention.transnormer import TransNormerMixer, merge_heads, rms_norm
from lln.functional.slots import split
from lln.registry import register


@register("transnormer_t1", paper="Qin et al. 2022b", complexity="O(N)", row_stochastic=False)
class TransNormerT1Mixer(TransNormerMixer):
    """Early layers ReLU attention within blocks, later ones normed linear attention by elu.

    Args:
        dim: C.
        heads: number of heads.
        layer: which of the model's `layers` this is, counted from 0.
        layers: how many there are.
        block_size: tokens per block.
    """

    def features(self, x: Tensor) -> Tensor:
        return F.elu(x)

    def diag_attention(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool
    ) -> Tensor:
        """RMSNorm(relu(q kᵀ / √D) v): ReLA, whose weights have no denominator either."""
        n, scale = q.shape[2], q.shape[3] ** -0.5
        q, k, v = (split(x, self.block_size) for x in (scale * q, k, v))  # (B, H, M, size, D)
        weight = (q @ k.mT).relu()
        if causal:
            weight = weight.tril()
        return rms_norm(merge_heads((weight @ v).flatten(2, 3)[:, :, :n]))
