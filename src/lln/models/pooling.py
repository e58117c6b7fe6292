"""One vector of many."""

import torch
from torch import Tensor

from lln.functional.precision import upcast
from lln.models.configuration import Pooling


def pool(x: Tensor, key_mask: Tensor | None, pooling: Pooling) -> Tensor:
    """`(B, N, C)` vectors to `(B, C)`.

    Args:
        x: of any precision; what stands at padding does not matter.
        key_mask: `(B, N)` bool, True = keep.
        pooling: the `first` vector that is kept, wherever it stands, or the `mean` over those that
            are, which is 0 if there are none.
    """
    if key_mask is None:
        key_mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if pooling == "first":
        return x[torch.arange(len(x), device=x.device), key_mask.int().argmax(1)]
    # In float32: the sum over a long sequence is beyond float16.
    total = upcast(x).masked_fill(~key_mask.unsqueeze(-1), 0).sum(1)
    return (total / key_mask.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)
