"""Random Feature Attention (Peng et al. 2021, arXiv 2103.02143), ungated, O(N · F · D).

Random Fourier features (Theorem 1) Φ(x) = [sin(ωᵀx), cos(ωᵀx)] / √F of queries and keys of length
1, whose products are Gaussian kernels on average (Eq. 4–5); ω = σ ∘ Gaussian with a learned σ
(section 3.1), separate for each head.

Deviations: weights estimated like this may be negative, and so may their sum. It is kept at 0.1 at
least; the authors' code keeps it at 1.6 in these units, which shrinks what short sequences get. One
draw is kept until `redraw` is called, where the authors take one of 200 draws at each step.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention.sequence import SequenceAttention
from lln.functional.checks import check_positive
from lln.functional.chunked import with_ones
from lln.functional.precision import upcast
from lln.functional.unnormalised import unnormalised_attention
from lln.registry import register

LEAST_SUM = 0.1


@register("rfa", paper="Peng et al. 2021", complexity="O(N)", row_stochastic=False)
class RFAAttention(SequenceAttention):
    """A Gaussian kernel of directions, estimated by random Fourier features.

    Args:
        features: how many frequencies, F.
        seed: of the frequencies.
    """

    frequencies: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int = 64,
        seed: int = 0,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads)
        check_positive("features", features)
        self.sigma = nn.Parameter(torch.ones(heads, 1, head_dim))
        generator = torch.Generator().manual_seed(seed)
        gaussian = torch.randn(heads, features, head_dim, generator=generator)
        self.register_buffer("frequencies", gaussian)

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draws new frequencies; `generator` is on the CPU."""
        self.frequencies.copy_(torch.randn(self.frequencies.shape, generator=generator))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        values = with_ones(v).masked_fill(~keep[:, None, :, None], 0)
        sums = unnormalised_attention(
            self._features(q), self._features(k), values, causal=causal
        )  # (B, H, N, E + 1)
        return sums[..., :-1] / sums[..., -1:].clamp(min=LEAST_SUM)

    def _features(self, x: Tensor) -> Tensor:
        frequencies: Tensor = upcast(self.sigma * self.frequencies)  # (H, F, D)
        angle: Tensor = F.normalize(x, dim=-1) @ frequencies.mT  # (B, H, N, F)
        return torch.cat([angle.sin(), angle.cos()], -1) / math.sqrt(frequencies.shape[1])
