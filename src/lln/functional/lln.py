"""Linear Log-Normal attention (Eq. 8 and 9), O(N · D · E), exact at any scale of its inputs.

    P_ij = Σ_c exp(α q_ic + β k_jc) / Σ_l Σ_c exp(α q_ic + β k_lc)

**Bidirectional: two softmaxes.** With z_c = log Σ_j exp(β k_jc), A = softmax_c(α q + z) and
B = softmax_j(β k), P = A Bᵀ: every number is in [0, 1], there is no eps, and a padded key is
β k = −inf (see `two_softmaxes`).

**Causal and packed: chunks with peaks.** Every exponential is taken relative to the largest
exponent that its row sees, so an outlier key neither overflows nor, being in the future, touches
the past (see `log_kernel`).

α and β are arguments; `lln.matching` finds them.
"""

import torch
from torch import Tensor

from lln.functional.checks import check_attention, check_power_of_two
from lln.functional.chunked import attend_causal, attend_packed
from lln.functional.log_kernel import LogKernel
from lln.functional.precision import no_autocast, upcast
from lln.functional.softmax import blank
from lln.functional.two_softmaxes import TwoSoftmaxes

Factor = float | Tensor


def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Factor,
    beta: Factor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    key_shift: Tensor | None = None,
    chunk_size: int = 64,
) -> Tensor:
    """LLN attention for given α and β.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`, H a multiple of H_kv.
        v: `(B, H_kv, N_k, E)`.
        alpha: a number, or a tensor that broadcasts to `(B, H)` (packed: `(S, H)`).
        beta: a number, or a tensor that broadcasts to `(B, H_kv)` (packed: `(S, H_kv)`).
        key_mask: `(B, N_k)` bool, True = keep. Padding may hold anything, NaN included.
        causal: query i sees the keys up to i + N_k − N_q (aligned bottom-right).
        cu_seqlens: `(S + 1,)` bounds of sequences packed into one row; tokens outside get 0.
        key_shift: broadcasts to `(B, H_kv, D)` (packed: `(S, H_kv, D)`), subtracted from every
            key. Softmax attention would not notice, LLN does (see `lln.matching`).
        chunk_size: tokens per chunk of the causal and packed forms, a power of two; changes
            nothing but speed.

    Returns:
        `(B, H, N_q, E)`, in q's dtype. A query that sees no key gets 0. A NaN in a real token
        may reach any query of its own row of the batch and head, but of no other.
    """
    check_attention(q, k, v, key_mask=key_mask, cu_seqlens=cu_seqlens)
    check_power_of_two("chunk_size", chunk_size)
    if q.shape[2] == 0 or k.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[3])
    with no_autocast(q.device):
        dtype, q, k, v = q.dtype, upcast(q), upcast(k), upcast(v)
        if causal or cu_seqlens is not None:
            log_q, log_k, v = log_features(q, k, v, alpha, beta, key_mask, cu_seqlens, key_shift)
            if cu_seqlens is None:
                out, _ = attend_causal(LogKernel(), log_q, log_k, v, chunk_size)
            else:
                out = attend_packed(LogKernel(), log_q, log_k, v, chunk_size, cu_seqlens, causal)
        else:
            out = _bidirectional(q, k, v, alpha, beta, key_mask, key_shift)
    return out.to(dtype)


def log_features(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Factor,
    beta: Factor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    key_shift: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives log Φ(q) = α q − β shift, log Φ(k) = β k (−inf at padding), v (0 at padding)."""
    if key_mask is not None:  # before the product: 0 · NaN would spoil the gradient of β
        k, v = blank(k, key_mask), blank(v, key_mask)
    rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    alpha, beta, offset = _factors(q, k, rows, alpha, beta, key_shift)
    log_q = q * _per_token(alpha.unsqueeze(-1), cu_seqlens, q)
    log_k = k * _per_token(beta.unsqueeze(-1), cu_seqlens, k)
    if offset is not None:
        offset = offset.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        log_q = log_q + _per_token(offset, cu_seqlens, q)
    if key_mask is not None:
        log_k = log_k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    return log_q, log_k, v


def _factors(
    q: Tensor, k: Tensor, rows: int, alpha: Factor, beta: Factor, key_shift: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """α `(rows, H)`, β `(rows, H_kv)` and −β · shift `(rows, H_kv, D)`, checked."""
    (heads, _, dim), kv_heads = q.shape[1:], k.shape[1]
    alpha = _expand("alpha", alpha, (rows, heads), q)
    beta = _expand("beta", beta, (rows, kv_heads), q)
    if key_shift is None:
        return alpha, beta, None
    shift = _expand("key_shift", key_shift, (rows, kv_heads, dim), q)
    return alpha, beta, -beta.unsqueeze(-1) * shift


def _expand(name: str, x: Factor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    # Filled on the device: a copy from the host would make it wait.
    x = x.to(like) if isinstance(x, Tensor) else like.new_full((), x)
    try:
        return x.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name} must broadcast to {shape}, got shape {tuple(x.shape)}") from None


def _per_token(x: Tensor, cu_seqlens: Tensor | None, like: Tensor) -> Tensor:
    """A value per sequence `(rows, H, X)` as one per token: `(B, H, 1, X)` or `(1, H, N, X)`."""
    if cu_seqlens is None:
        return x.unsqueeze(2)
    position = torch.arange(like.shape[2], device=like.device)
    sequence = torch.searchsorted(cu_seqlens.long(), position, right=True) - 1
    return x[sequence.clamp(0, x.shape[0] - 1)].transpose(0, 1).unsqueeze(0)


def _bidirectional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Factor,
    beta: Factor,
    key_mask: Tensor | None,
    key_shift: Tensor | None,
) -> Tensor:
    batch, kv_heads = k.shape[:2]
    alpha, beta, offset = _factors(q, k, batch, alpha, beta, key_shift)
    alpha = alpha.unflatten(1, (kv_heads, -1))[..., None, None]  # (B, H_kv, G, 1, 1)
    beta = beta[..., None, None]  # (B, H_kv, 1, 1)
    offset = None if offset is None else offset[:, :, None]  # (B, H_kv, 1, D)
    if key_mask is not None:
        v = blank(v, key_mask)
    # The heads of a group are further queries, so keys are shared, not repeated.
    rows = q.unflatten(1, (kv_heads, -1))  # (B, H_kv, G, N_q, D)
    out: Tensor = TwoSoftmaxes.apply(  # type: ignore[no-untyped-call]
        rows, k, v, alpha, beta, offset, key_mask
    )
    return out.flatten(1, 2)
