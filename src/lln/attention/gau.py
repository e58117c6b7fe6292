"""Gated attention unit with mixed chunk attention (FLASH; Hua et al. 2022, arXiv 2202.10447), O(N).

Sections 2 (the unit) and 3.2 (mixed chunks) of the paper and the pseudo-code of its appendix. With
u, v, z = SiLU(x W), and q, k, q', k' each made from z by a scale, an offset and rotary positions:

    within a chunk of C tokens   a_i = Σ_j relu(q_iᵀk_j / C + b_(j−i))² v_j
    over the whole sequence      m_i = q'_iᵀ Σ_j k'_j v_jᵀ / N, causally over the chunks before only
    out_i = (u_i ⊙ (a_i + m_i)) W_o

Cost O(N · (C + s) · E) for z of size s and v of size E.

Deviations:
    The paper's unit begins with a norm and ends with a residual; here the model has both.
    N is the number of real tokens. The pseudo-code averages the means of equal chunks, which is the
    same where the last chunk is full. The causal form divides by the tokens of the chunks before.
    The bias b is a table for chunks of any length; the paper factors it above 512 tokens.
    Linear layers start as PyTorch's do, not at a standard deviation of 0.02.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention.sequence import SequenceMixer
from lln.functional.checks import check_positive
from lln.functional.precision import no_autocast, upcast
from lln.functional.slots import split
from lln.functional.unnormalised import sums_before, unnormalised_attention
from lln.registry import register


@register("gau", paper="Hua et al. 2022", complexity="O(N)", row_stochastic=False)
class GAUMixer(SequenceMixer):
    """Gated unit: squared-ReLU attention within chunks, linear attention across them.

    Args:
        dim: C.
        heads: not used: the unit has one head.
        chunk_size: tokens per chunk.
        query_dim: size s of z, and so of queries and keys; even.
        expansion: size of gate and values, in multiples of `dim`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        chunk_size: int = 256,
        query_dim: int = 128,
        expansion: int = 2,
    ) -> None:
        super().__init__(dim, heads)
        check_positive("chunk_size", chunk_size)
        check_positive("query_dim", query_dim)
        check_positive("expansion", expansion)
        if query_dim % 2:
            raise ValueError(f"query_dim must be even: positions turn pairs, got {query_dim}")
        self.chunk_size = chunk_size
        hidden = expansion * dim
        self.sizes = [hidden, hidden, query_dim]
        self.expand = nn.Linear(dim, sum(self.sizes))
        self.scale = nn.Parameter(nn.init.normal_(torch.empty(4, query_dim), std=0.02))
        self.offset = nn.Parameter(torch.zeros(4, query_dim))
        # By distance, from j − i = 1 − C to C − 1.
        bias = torch.empty(2 * chunk_size - 1)
        self.position_bias = nn.Parameter(nn.init.normal_(bias, std=0.02))
        self.out = nn.Linear(hidden, dim)

    def mix(self, x: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        gate, v, z = F.silu(self.expand(x)).split(self.sizes, -1)
        with no_autocast(x.device):
            # No weight is divided by the sum of weights: a key without a value has no say.
            v = upcast(v).masked_fill(~keep.unsqueeze(-1), 0)
            heads = upcast(z).unsqueeze(1) * self.scale.unsqueeze(1) + self.offset.unsqueeze(1)
            q, k, linear_q, linear_k = rotate(heads).unbind(1)  # (B, N, s) each
            mixed = self._within_chunks(q, k, v, causal)
            if causal:
                mixed = mixed + self._before_chunks(linear_q, linear_k, v)
            else:
                real = keep.sum(1).clamp(min=1)[:, None, None]
                mixed = mixed + unnormalised_attention(linear_q, linear_k / real, v)
        out: Tensor = self.out(gate * mixed.to(gate.dtype))
        return out

    def _within_chunks(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        n = v.shape[1]
        q, k, v = (split(x, self.chunk_size) for x in (q, k, v))  # (B, M, C, ·)
        bias = self.position_bias.unfold(0, self.chunk_size, 1).flip(0)  # (C, C), b_(j−i) at i, j
        weight = (q / self.chunk_size @ k.mT + bias).relu().square()
        if causal:
            weight = weight.tril()
        return (weight @ v).flatten(1, 2)[:, :n]

    def _before_chunks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = v.shape[1]
        q, k, v = (split(x, self.chunk_size) for x in (q, k, v))  # (B, M, C, ·)
        seen = (torch.arange(v.shape[1], device=v.device) * self.chunk_size).clamp(min=1)
        mean = sums_before(k, v) / seen[:, None, None]
        return (q @ mean).flatten(1, 2)[:, :n]


def rotate(x: Tensor) -> Tensor:
    """Rotary positions: turns the pair (c, c + s/2) of token n by n · 10000^(−2c/s).

    Args:
        x: `(..., N, s)`.
    """
    n, half = x.shape[-2], x.shape[-1] // 2
    frequency = 10000 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angle = torch.arange(n, dtype=x.dtype, device=x.device)[:, None] * frequency  # (N, s/2)
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
