"""Linear Transformers (Katharopoulos et al. 2020), O(N · D²): Φ(x) = elu(x) + 1."""

import torch.nn.functional as F
from torch import Tensor

from lln.attention.feature_map import FeatureMapAttention
from lln.registry import register


@register("elu", paper="Katharopoulos et al. 2020", complexity="O(N)")
class EluAttention(FeatureMapAttention):
    """Linear attention with the feature map elu(x) + 1."""

    def features(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1
