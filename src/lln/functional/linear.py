"""Linearised attention (Eq. 4) for any positive feature maps, O(N · D · E)."""

import torch
from torch import Tensor

from lln.functional.checks import check_attention, check_positive
from lln.functional.chunked import attend_causal, attend_packed, normalise, with_ones
from lln.functional.in_order import attend_in_order, starts
from lln.functional.precision import no_autocast, upcast
from lln.functional.prefix import Sums, nothing
from lln.functional.softmax import blank


class _FeatureKernel:
    """κ(q, k) = Φ(q)ᵀΦ(k), given the features themselves, which need no peaks."""

    blank = 0.0

    def sums(self, k: Tensor, v: Tensor) -> Sums:
        return Sums(k.new_zeros(*k.shape[:-2], k.shape[-1]), k.mT @ v)

    def read(self, q: Tensor, sums: Sums) -> Tensor:
        return normalise(q @ sums.total)

    def read_causal(self, q: Tensor, k: Tensor, v: Tensor, before: Sums) -> Tensor:
        weight = (q @ k.mT).unflatten(-2, (k.shape[-2], -1))  # (..., n, G, n)
        weight = weight.transpose(-2, -3).tril().transpose(-2, -3).flatten(-3, -2)
        return normalise(q @ before.total + weight @ v)

    def attend_in_order(
        self, q: Tensor, k: Tensor, v: Tensor, sequence: Tensor, state: Sums | None
    ) -> tuple[Tensor, Sums]:
        before = nothing(k, v) if state is None else state
        decay = k.new_ones(()).expand(*k.shape[:3], k.shape[4])  # (B, H, M, D)
        out, total = attend_in_order(q, k, v, None, decay, starts(sequence), before.total)
        return out, Sums(torch.zeros_like(before.peak), total)


def linear_attention(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> Tensor:
    """Σ_j Φ(q_i)ᵀΦ(k_j) v_j / Σ_j Φ(q_i)ᵀΦ(k_j), without eps.

    Padding is masked in the feature: zeroing v alone would leave it in the denominator.

    Args:
        phi_q: `(B, H, N_q, D)`, the features Φ(q) ≥ 0, not the queries.
        phi_k: `(B, H_kv, N_k, D)`, the features Φ(k) ≥ 0, not the keys.
        v: `(B, H_kv, N_k, E)`.
        key_mask: `(B, N_k)` bool, True = keep. Padding may hold anything, NaN included.
        causal: query i sees the keys up to i + N_k − N_q (aligned bottom-right).
        cu_seqlens: `(S + 1,)` bounds of sequences packed into one row.
        chunk_size: tokens per chunk of the causal and packed forms; changes nothing but speed.

    Returns:
        `(B, H, N_q, E)`, in phi_q's dtype. A query with no weight on any key gets 0.
    """
    check_attention(
        phi_q, phi_k, v, key_mask=key_mask, cu_seqlens=cu_seqlens, names=("phi_q", "phi_k", "v")
    )
    check_positive("chunk_size", chunk_size)
    if key_mask is not None:
        phi_k, v = blank(phi_k, key_mask), blank(v, key_mask)
    kernel = _FeatureKernel()
    with no_autocast(phi_q.device):
        q, k, values = upcast(phi_q), upcast(phi_k), upcast(v)
        if q.shape[2] == 0 or k.shape[2] == 0:
            out = values.new_zeros(*q.shape[:3], v.shape[3])
        elif cu_seqlens is not None:
            out = attend_packed(kernel, q, k, values, chunk_size, cu_seqlens, causal)
        elif causal:
            out = attend_causal(kernel, q, k, values, chunk_size)[0]
        else:
            rows = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # (B, H_kv, G · N, D)
            out = normalise(rows @ (k.mT @ with_ones(values)))
            out = out.unflatten(2, (-1, q.shape[2])).flatten(1, 2)
        return out.to(phi_q.dtype)
