"""Learned maps of queries and keys, with which an attention is taught to imitate another.

The idea is that of Hedgehog (arXiv 2402.04347) and LoLCATs (arXiv 2410.10254): a linear map per
head before the feature map of a linear attention, trained on the outputs of softmax attention.
"""

import torch
from torch import Tensor, nn

from lln.functional.precision import no_autocast, upcast


class HeadMaps(nn.Module):
    """A linear map for the queries of each head and one for its keys, the identity at first.

    It is a part of the core that it serves and is saved with it, but not applied by it: the
    attention function does that, so that whatever looks at a core sees the q and k that it gets.

    Args:
        heads: of queries.
        kv_heads: of keys.
        head_dim: D.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1))
        self.query_bias = nn.Parameter(torch.zeros(heads, 1, head_dim))
        self.key_weight = nn.Parameter(torch.eye(head_dim).repeat(kv_heads, 1, 1))
        self.key_bias = nn.Parameter(torch.zeros(kv_heads, 1, head_dim))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """`(B, H, N_q, D)` and `(B, H_kv, N_k, D)`, mapped."""
        return _map(q, self.query_weight, self.query_bias), _map(k, self.key_weight, self.key_bias)


def _map(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with no_autocast(x.device):
        return (upcast(x) @ upcast(weight).mT + upcast(bias)).to(x.dtype)
