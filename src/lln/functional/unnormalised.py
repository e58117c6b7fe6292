"""Linear attention without a denominator, for features of any sign, O(N · D · E)."""

import torch.nn.functional as F
from torch import Tensor

from lln.functional.slots import split


def unnormalised_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, *, causal: bool = False, chunk_size: int = 64
) -> Tensor:
    """Σ_j Φ(q_i)ᵀΦ(k_j) v_j. A key whose value is 0 has no say: that is how padding is masked.

    Args:
        phi_q: `(..., N, D)`, the features Φ(q), float32 or float64.
        phi_k: `(..., N, D)`, the features Φ(k).
        v: `(..., N, E)`.
        causal: query i sees the keys j ≤ i.
        chunk_size: tokens per chunk of the causal form; changes nothing but speed.
    """
    if not causal:
        return phi_q @ (phi_k.mT @ v)
    n = v.shape[-2]
    phi_q, phi_k, v = (split(x, chunk_size) for x in (phi_q, phi_k, v))  # (..., M, c, ·)
    out = phi_q @ sums_before(phi_k, v) + (phi_q @ phi_k.mT).tril() @ v
    return out.flatten(-3, -2)[..., :n, :]


def sums_before(phi_k: Tensor, v: Tensor) -> Tensor:
    """For each of M chunks, Σ_j Φ(k_j) v_jᵀ over all earlier chunks.

    Args:
        phi_k: `(..., M, c, D)`.
        v: `(..., M, c, E)`.

    Returns:
        `(..., M, D, E)`.
    """
    # Shifting, not subtracting a chunk's own sum, keeps its future out of it to the last bit.
    sums = F.pad(phi_k.mT @ v, (0, 0, 0, 0, 1, -1))
    return sums.cumsum(-3)
