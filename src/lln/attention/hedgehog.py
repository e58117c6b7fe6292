"""Hedgehog (Zhang et al. 2024, arXiv 2402.04347), O(N · D²): feature maps that are learned.

Φ(x) = [exp(W x + b), exp(−W x − b)] (section 4), a map for each head, and others for queries than
for keys. W starts as the identity, b as 0.

Deviations: exact at any scale (the authors' code clamps or normalises the features). Training the
maps to imitate the weights of a given softmax attention is a recipe, and not part of the mechanism.
"""

import torch
from torch import Tensor, nn

from lln.attention.log_feature_map import LogFeatureAttention
from lln.functional.precision import upcast
from lln.registry import register


@register("hedgehog", paper="Zhang et al. 2024", complexity="O(N)")
class HedgehogAttention(LogFeatureAttention):
    """Linear attention with learned maps [exp(Wx), exp(−Wx)]."""

    learns_maps = True

    def __init__(self, heads: int, head_dim: int, *, kv_heads: int | None = None) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads)
        self.query_weight = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1))
        self.query_bias = nn.Parameter(torch.zeros(heads, 1, head_dim))
        self.key_weight = nn.Parameter(torch.eye(head_dim).repeat(self.kv_heads, 1, 1))
        self.key_bias = nn.Parameter(torch.zeros(self.kv_heads, 1, head_dim))

    def log_query_features(self, q: Tensor) -> Tensor:
        mapped = q @ upcast(self.query_weight).mT + upcast(self.query_bias)
        return torch.cat([mapped, -mapped], -1)  # (B, H, N, 2 D)

    def log_key_features(self, k: Tensor) -> Tensor:
        mapped = k @ upcast(self.key_weight).mT + upcast(self.key_bias)
        return torch.cat([mapped, -mapped], -1)  # (B, H_kv, N, 2 D)
