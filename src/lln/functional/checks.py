"""What every function of this package refuses, said in one line that names the argument.

Only shapes and dtypes are looked at: reading values would make a GPU wait for the host. The one
exception, the order of ``cu_seqlens``, is checked where reading it is free (eager, on the CPU).
"""

import torch
from torch import Tensor


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    names: tuple[str, str, str] = ("q", "k", "v"),
) -> None:
    """Raises unless q `(B, H, N_q, D)`, k `(B, H_kv, N_k, D)`, v `(B, H_kv, N_k, E)` fit."""
    for name, x in zip(names, (q, k, v), strict=True):
        if x.dim() != 4:
            raise ValueError(f"{name} must have shape (B, H, N, D), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {x.dtype}")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have {names[0]}'s dtype {q.dtype}, got {x.dtype}")
    batch, heads, n_q, dim = q.shape
    _, kv_heads, n_k, _ = k.shape
    if k.shape[0] != batch:
        raise ValueError(f"{names[1]} must have {names[0]}'s batch size {batch}, got {k.shape[0]}")
    if k.shape[3] != dim:
        raise ValueError(
            f"{names[1]} must have {names[0]}'s head dimension {dim}, got {k.shape[3]}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"{names[2]} must share {names[1]}'s (B, H, N) = {tuple(k.shape[:3])}, "
            f"got {tuple(v.shape[:3])}"
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"{names[0]}'s {heads} heads must be a multiple of {names[1]}'s {kv_heads} heads"
        )
    if key_mask is not None:
        check_key_mask(key_mask, batch, n_k)
    if cu_seqlens is not None:
        if batch != 1 or n_q != n_k:
            raise ValueError(
                "cu_seqlens packs self-attention into one row: q, k and v must have batch size 1 "
                f"and equal lengths, got B={batch}, N_q={n_q}, N_k={n_k}"
            )
        check_cu_seqlens(cu_seqlens, n_k)


def check_tokens(
    x: Tensor, dim: int, *, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> None:
    """Raises unless x is `(B, N, dim)` and the masks fit it."""
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"x must have shape (B, N, {dim}), got {tuple(x.shape)}")
    batch, n, _ = x.shape
    if key_mask is not None:
        check_key_mask(key_mask, batch, n)
    if cu_seqlens is not None:
        if batch != 1:
            raise ValueError(f"cu_seqlens packs into one row: x must have B = 1, got {batch}")
        check_cu_seqlens(cu_seqlens, n)


def check_key_mask(key_mask: Tensor, batch: int, n: int) -> None:
    """Raises unless `key_mask` is `(B, N)` bool."""
    if key_mask.dim() != 2 or key_mask.shape != (batch, n):
        raise ValueError(
            f"key_mask must have shape (B, N_k) = ({batch}, {n}), got {tuple(key_mask.shape)}; "
            "it masks keys only, so a mask over (query, key) pairs cannot be honoured"
        )
    if key_mask.dtype != torch.bool:
        raise ValueError(
            f"key_mask must be bool with True = keep, got {key_mask.dtype}; "
            "pass mask.bool() for a 1/0 mask, (mask == 0) for an additive one"
        )


def check_cu_seqlens(cu_seqlens: Tensor, n: int) -> None:
    """Raises unless `cu_seqlens` is `(S + 1,)` integers that do not decrease."""
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(
            f"cu_seqlens must have shape (sequences + 1,), got {tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens must be int32 or int64, got {cu_seqlens.dtype}")
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        bounds = cu_seqlens.tolist()
        if bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > n:
            raise ValueError(f"cu_seqlens must rise from 0 to at most N = {n}, got {bounds}")


def check_positive(name: str, value: int) -> None:
    """Raises unless `value` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def check_power_of_two(name: str, value: int) -> None:
    """Raises unless `value` is 1, 2, 4 and so on."""
    check_positive(name, value)
    if value & (value - 1):
        raise ValueError(f"{name} must be a power of two, got {value}")
