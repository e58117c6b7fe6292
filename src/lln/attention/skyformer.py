"""Skyformer (Chen et al. 2021, arXiv 2111.00035), O(N · M · D) with M landmarks.

Weights κ(q_i, k_j) = exp(−|q_i − k_j|² / 2√D), not normalised (Eq. 3), by the Nyström method:
κ(q, k) is a block of κ([q; k], [q; k]), which is positive semi-definite (Eq. 4), so that with
landmarks l out of [q; k] it is about κ(q, l) κ(l, l)⁻¹ κ(l, k) (Eq. 5 and 6). κ(l, l) + γ I, scaled
on both sides by the roots of its row sums (section 4.4), is inverted by Nyströmformer's iteration.

As in the authors' code, half of the landmarks are queries and half are keys, their positions, which
all heads share, are drawn uniformly with replacement, and γ = 0.1. Deviations: they are drawn once,
and again when `redraw` is called, not in each call; the iteration starts from the norm of each
matrix by itself, not from the largest in the batch; the kernel has √D, as in the paper, where the
code has √32 whatever D is.
"""

import math

import torch
from torch import Tensor

from lln.attention.nystromformer import pseudo_inverse
from lln.attention.sequence import SequenceAttention
from lln.functional.checks import check_positive
from lln.registry import register

GAMMA = 0.1  # keeps κ(l, l) invertible, though landmarks may repeat
BITS = 31


@register(
    "skyformer",
    paper="Chen et al. 2021",
    complexity="O(N)",
    causal=False,
    row_stochastic=False,
)
class SkyformerAttention(SequenceAttention):
    """Attention with a Gaussian kernel, by the Nyström method.

    Args:
        landmarks: how many, M.
        seed: of their positions.
    """

    draws: Tensor
    """`(M,)` positions as fractions of a sequence's length, in units of 2^−31: as integers they
    survive a cast of the model to half precision."""

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        landmarks: int = 128,
        seed: int = 0,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        check_positive("landmarks", landmarks)
        self.register_buffer("draws", torch.empty(landmarks, dtype=torch.int64))
        self.redraw(torch.Generator().manual_seed(seed))

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draws new landmarks, as the authors do in each call; `generator` is on the CPU."""
        self.draws.copy_(torch.randint(2**BITS, self.draws.shape, generator=generator))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        q, k = math.sqrt(self.scale) * q, math.sqrt(self.scale) * k
        landmarks = self._landmarks(q, k, keep)
        identity = torch.eye(landmarks.shape[2], dtype=q.dtype, device=q.device)
        between = gaussian_kernel(landmarks, landmarks) + GAMMA * identity  # (B, H, M, M)
        root = between.sum(-1, keepdim=True).rsqrt()  # (B, H, M, 1)
        inverse = root * pseudo_inverse(root * between * root.mT) * root.mT
        # There are no row sums, so the zeros that are v at padding keep it out.
        seen = gaussian_kernel(landmarks, k) @ v  # (B, H, M, E)
        return gaussian_kernel(q, landmarks) @ (inverse @ seen)

    def _landmarks(self, q: Tensor, k: Tensor, keep: Tensor) -> Tensor:
        """`(B, H, M, D)` queries and keys at the drawn positions among a row's real tokens."""
        position = (self.draws * keep.sum(1, keepdim=True)) >> BITS  # (B, M)
        position = position[:, None, :, None]  # (B, 1, M, 1)
        half = len(self.draws) // 2
        queries = torch.take_along_dim(q, position[:, :, :half], 2)
        keys = torch.take_along_dim(k, position[:, :, half:], 2)
        return torch.cat([queries, keys], 2)


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(−|x_i − y_j|² / 2) of `(…, I, D)` and `(…, J, D)`."""
    half_norm_x, half_norm_y = (z.square().sum(-1, keepdim=True) / 2 for z in (x, y))
    # −|x − y|² / 2 = xᵀy − |x|²/2 − |y|²/2 as one product, which spares passes over (I, J).
    x = torch.cat([x, half_norm_x, torch.ones_like(half_norm_x)], -1)
    y = torch.cat([y, -torch.ones_like(half_norm_y), -half_norm_y], -1)
    # Rounding may leave a distance below 0, where exp could overflow.
    return (x @ y.mT).clamp(max=0).exp()
