"""TransNormer (Qin et al. 2022b, arXiv 2210.10340): what its two forms, T1 and T2, share.

The first half of a model's layers is DiagAttention, attention within blocks, against attention that
spreads over the whole sequence; the second half is NormAttention (section 4 of the paper),

    out = RMSNorm(Φ(Q) (Φ(K)ᵀ V)) W_o,

linear attention whose output is normalised instead of its weights, so that gradients stay bounded.
RMSNorm is over all heads, without parameters, its eps of 1e-8 beside the root: the authors' code.
O(N · D²) and O(N · block size · D).

Deviations:
    The authors' code also turns queries and keys by LRPE, learned rotary positions from another
    paper (arXiv 2307.09270); here positions are the model's.
    Norms around the layer, its residual and its gated feed-forward part are the model's, too.
    In the authors' code the last block, if it is short, also sees the zeros that fill it up, and
    softmax gives them weight; here a block ends with its sequence.
    Linear layers start as PyTorch's do, not as Xavier's.
"""

import math

import torch
from torch import Tensor, nn

from lln.attention.sequence import SequenceMixer
from lln.functional.checks import check_positive
from lln.functional.precision import no_autocast, upcast
from lln.functional.softmax import blank
from lln.functional.unnormalised import unnormalised_attention


class TransNormerMixer(SequenceMixer):
    """A layer's attention; a subclass writes Φ and DiagAttention.

    Args:
        dim: C.
        heads: number of heads.
        layer: which of the model's `layers` this is, counted from 0. The only layer of a model,
            which is the default, is NormAttention.
        layers: how many there are.
        block_size: tokens per block of DiagAttention.
    """

    def __init__(
        self, dim: int, heads: int, *, layer: int = 0, layers: int = 1, block_size: int = 64
    ) -> None:
        super().__init__(dim, heads)
        check_positive("block_size", block_size)
        if not 0 <= layer < layers:
            raise ValueError(f"layer must be from 0 to layers − 1 = {layers - 1}, got {layer}")
        self.diagonal = layer < layers // 2
        self.block_size = block_size
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.value, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def features(self, x: Tensor) -> Tensor:
        """Φ(x), of queries and keys alike; x is float32 or float64."""
        raise NotImplementedError

    def diag_attention(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool
    ) -> Tensor:
        """DiagAttention, `(B, H, N, D)` → `(B, N, C)`; v is 0 at padding."""
        raise NotImplementedError

    def mix(self, x: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        q, k, v = (
            linear(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, H, N, D)
            for linear in (self.query, self.key, self.value)
        )
        with no_autocast(x.device):
            q, k, v = upcast(q), upcast(k), blank(upcast(v), keep)
            if self.diagonal:
                mixed = self.diag_attention(q, k, v, keep, causal=causal)
            else:
                q, k = self.features(q), self.features(k)
                mixed = rms_norm(merge_heads(unnormalised_attention(q, k, v, causal=causal)))
        out: Tensor = self.out(mixed.to(x.dtype))
        return out


def merge_heads(x: Tensor) -> Tensor:
    """`(B, H, N, D)` → `(B, N, H · D)`."""
    return x.transpose(1, 2).flatten(2)


def rms_norm(x: Tensor) -> Tensor:
    """Divides by √mean(x²) + 1e-8, over the last dimension."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (norm / math.sqrt(x.shape[-1]) + 1e-8)
