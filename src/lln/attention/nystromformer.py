"""Nyströmformer (Xiong et al. 2021, arXiv 2102.03902), O(N · M · D) with M landmarks.

Softmax attention by the Nyström method (Algorithm 1): with landmarks q̃ and k̃, the means of segments
of queries and keys, S ≈ softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ softmax(q̃ kᵀ), scores scaled by 1/√D, where ⁺
is the pseudo-inverse, approximated by six steps of a third-order iteration (Lemma 1). As in the
authors' code, a sequence with no more tokens than there are landmarks is attended to exactly, and a
depth-wise convolution of the values may be added.

Deviations: segments are those of a sequence's real tokens, token i of n in segment ⌊i M / n⌋, which
are the paper's where M divides n. The iteration starts from Aᵀ / ‖A‖₁ of each matrix by itself (the
"exact" option of the authors' code), not from the largest norm in the batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention.sequence import SequenceAttention
from lln.functional.checks import check_positive
from lln.functional.softmax import masked_softmax
from lln.registry import register


@register(
    "nystromformer",
    paper="Xiong et al. 2021",
    complexity="O(N)",
    causal=False,
    row_stochastic=False,
)
class NystromformerAttention(SequenceAttention):
    """Softmax attention by the Nyström method, through means of segments.

    Args:
        landmarks: how many segments, M.
        conv: kernel size, odd, of a depth-wise convolution of the values that is added to the
            output; none by default.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        landmarks: int = 64,
        conv: int | None = None,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        check_positive("landmarks", landmarks)
        self.landmarks = landmarks
        self.conv = None
        if conv is not None:
            check_positive("conv", conv)
            if conv % 2 == 0:
                raise ValueError(f"conv must be odd, to have a middle, got {conv}")
            self.conv = nn.Conv2d(heads, heads, (conv, 1), groups=heads, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        q = self.scale * q
        member = self._segments(keep)  # (B, M, N)
        means = member.to(q.dtype) / member.sum(2, keepdim=True).clamp(min=1)
        q_means = torch.einsum("bmn,bhnd->bhmd", means, q)
        k_means = torch.einsum("bmn,bhnd->bhmd", means, k)

        used = member.any(2)  # (B, M)
        real, row, column = keep[:, None, None, :], used[:, None, :, None], used[:, None, None, :]
        to_landmarks = masked_softmax(q @ k_means.mT, column)  # (B, H, N, M)
        between = masked_softmax(q_means @ k_means.mT, row & column)  # (B, H, M, M)
        to_tokens = masked_softmax(q_means @ k.mT, row & real)  # (B, H, M, N)
        seen = to_tokens @ v  # (B, H, M, E)
        out = to_landmarks @ (pseudo_inverse(between) @ seen)  # (B, H, N, E)

        # In a short sequence each token is a landmark, and `seen` its exact attention.
        short = keep.sum(1) <= self.landmarks
        exact = F.pad(seen, (0, 0, 0, q.shape[2] - self.landmarks))
        out = exact.where(short[:, None, None, None], out)
        if self.conv is not None:
            kernel = self.conv.weight.to(v.dtype)
            out = out + F.conv2d(v, kernel, padding="same", groups=self.heads)
        return out

    def _segments(self, keep: Tensor) -> Tensor:
        """`(B, M, N)` bool: which tokens are in which segment.

        A sequence of fewer tokens than landmarks has as many segments as tokens.
        """
        count = keep.sum(1, keepdim=True)  # (B, 1)
        position = torch.arange(keep.shape[1], device=keep.device)
        segment = position * count.clamp(max=self.landmarks) // count.clamp(min=1)  # (B, N)
        landmark = torch.arange(self.landmarks, device=keep.device)
        return (segment[:, None, :] == landmark[:, None]) & keep[:, None, :]


def pseudo_inverse(matrix: Tensor) -> Tensor:
    """Moore–Penrose inverse, approximately, of non-negative matrices `(…, M, M)`.

    It converges where ‖A‖₂² ≤ ‖A‖₁, as for stochastic matrices. Rows and columns of zeros stay.
    """
    norm = matrix.sum(-2).amax(-1)[..., None, None]
    inverse = matrix.mT / norm.masked_fill(norm == 0, 1)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(6):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = inverse @ (13 * identity - product @ inner) / 4
    return inverse
