"""Φ(x) = relu(x), the ReLU kernel's linear counterpart (Figure 2 of the paper), O(N · D²)."""

from torch import Tensor

from lln.attention.feature_map import FeatureMapAttention
from lln.registry import register


@register("relu", paper="Nahshan et al. 2023, Figure 2", complexity="O(N)")
class ReluAttention(FeatureMapAttention):
    """Linear attention with the feature map relu(x)."""

    def features(self, x: Tensor) -> Tensor:
        return x.relu()
