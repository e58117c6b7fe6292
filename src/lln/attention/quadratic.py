"""Φ(x) = x², the quadratic kernel's linear counterpart (Figure 2 of the paper), O(N · D²)."""

from torch import Tensor

from lln.attention.feature_map import FeatureMapAttention
from lln.registry import register


@register("quadratic", paper="Nahshan et al. 2023, Figure 2", complexity="O(N)")
class QuadraticAttention(FeatureMapAttention):
    """Linear attention with the feature map x², element by element."""

    def features(self, x: Tensor) -> Tensor:
        return x.square()
