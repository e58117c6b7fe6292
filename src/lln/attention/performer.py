"""Performer (Choromanski et al. 2021, arXiv 2009.14794), O(N · F · D) with F features.

FAVOR+: positive random features (Lemma 1) Φ(x) ∝ exp(ωᵀx − |x|²/2) of x = D^(−1/4) q or k, whose
products are exp(qᵀk/√D) on average, with orthogonal ω (section 2.4).

Deviations: the authors' code subtracts a maximum over the sequence and adds eps to the features, to
keep exp in range; here the features stay logarithms, which needs neither. All heads share one
projection, as in that code. It is redrawn when `redraw` is called and not by itself, so that a
model does not change between two calls.
"""

import math

import torch
from torch import Tensor

from lln.attention.log_feature_map import LogFeatureAttention
from lln.functional.checks import check_positive
from lln.functional.precision import upcast
from lln.registry import register


@register("performer", paper="Choromanski et al. 2021", complexity="O(N)")
class PerformerAttention(LogFeatureAttention):
    """Softmax attention estimated by positive orthogonal random features.

    Args:
        features: how many, F; D · log(D) by default.
        seed: of the projection.
    """

    projection: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int | None = None,
        seed: int = 0,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        if features is None:
            features = max(1, int(head_dim * math.log(head_dim)))
        check_positive("features", features)
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("projection", orthogonal_gaussian(features, head_dim, generator))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draws a new projection, as training does every so often; `generator` is on the CPU."""
        features, head_dim = self.projection.shape
        self.projection.copy_(orthogonal_gaussian(features, head_dim, generator))

    def log_query_features(self, q: Tensor) -> Tensor:
        return self._log_features(q)

    def log_key_features(self, k: Tensor) -> Tensor:
        return self._log_features(k)

    def _log_features(self, x: Tensor) -> Tensor:
        x = math.sqrt(self.scale) * x
        projected: Tensor = x @ upcast(self.projection).mT
        return projected - x.square().sum(-1, keepdim=True) / 2


def orthogonal_gaussian(
    rows: int, columns: int, generator: torch.Generator | None = None
) -> Tensor:
    """Gaussian vectors `(rows, columns)`, of which each `columns` in a row are orthogonal."""
    blocks = -(-rows // columns)
    gaussian = torch.randn(blocks, columns, columns, generator=generator)
    directions: Tensor = torch.linalg.qr(gaussian).Q.mT.flatten(0, 1)[:rows]
    # Lengths of independent Gaussian vectors, which orthogonality leaves free.
    lengths: Tensor = torch.randn(rows, columns, generator=generator).norm(dim=1, keepdim=True)
    return lengths * directions
