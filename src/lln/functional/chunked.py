"""Attention that is linear in the keys' sums, in chunks: the causal and the packed form.

Each chunk is summed up once; a query reads the sums of the chunks before its own (causal) or of
all chunks of its sequence (packed), and a causal query also reads its own chunk up to itself.
Values carry a column of ones, so that numerator and denominator are one product.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.functional.prefix import Sums, exclusive_prefix, merge, per_sequence
from lln.functional.slots import assign, split


class Kernel(Protocol):
    """A positive kernel κ(q, k) = Σ_c Φ_c(q) Φ_c(k), on tensors that end in (N, D)."""

    blank: float
    """What a key looks like that has no weight."""

    def sums(self, k: Tensor, v: Tensor) -> Sums:
        """Σ_j Φ(k_j) v_jᵀ: `(..., n, D)`, `(..., n, F)` → peak `(..., D)`, total `(..., D, F)`."""

    def read(self, q: Tensor, sums: Sums) -> Tensor:
        """Averages, Φ(q_i) · sums normalised: `(..., r, D)` → `(..., r, F − 1)`."""

    def read_causal(self, q: Tensor, k: Tensor, v: Tensor, before: Sums) -> Tensor:
        """The same over `before` and the keys j ≤ i; r / n rows of q stand at each position."""

    def attend_in_order(
        self, q: Tensor, k: Tensor, v: Tensor, sequence: Tensor, state: Sums | None
    ) -> tuple[Tensor, Sums]:
        """What `attend_at_once` gives, one chunk after another (see `in_order`)."""


def with_ones(v: Tensor) -> Tensor:
    """`[v, 1]`, whose weighted sum is `[numerator, denominator]`."""
    return F.pad(v, (0, 1), value=1.0)


def normalise(sums: Tensor) -> Tensor:
    """Numerator by denominator; 0 where there was nothing to sum."""
    total = sums[..., -1:]
    return sums[..., :-1] / total.masked_fill(total == 0, 1)


def fold_groups(q: Tensor, kv_heads: int) -> Tensor:
    """`(B, H, M, c, D)` → `(B, H_kv, M, c · G, D)`: heads that share keys become further rows."""
    rows: Tensor = q.unflatten(1, (kv_heads, -1)).permute(0, 1, 3, 4, 2, 5).flatten(3, 4)
    return rows


def unfold_groups(x: Tensor, heads: int) -> Tensor:
    """`(B, H_kv, M, c · G, F)` → `(B, H, M, c, F)`."""
    groups = heads // x.shape[1]
    out: Tensor = x.unflatten(3, (-1, groups)).permute(0, 1, 4, 2, 3, 5).flatten(1, 2)
    return out


def attend_causal(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, size: int, state: Sums | None = None
) -> tuple[Tensor, Sums]:
    """Causal attention after `state`, aligned bottom-right, and the state after the last key.

    Args:
        kernel: the kernel.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`, padding already blank; N_k > 0.
        v: `(B, H_kv, N_k, E)`.
        size: tokens per chunk.
        state: the sums of the keys that came before, peak `(B, H_kv, D)`.
    """
    heads, n_q = q.shape[1], q.shape[2]
    kv_heads, n_k = k.shape[1], k.shape[2]
    if n_q < n_k:  # the keys that every query sees
        past = n_k - n_q
        seen = kernel.sums(k[:, :, :past], with_ones(v[:, :, :past]))
        state = seen if state is None else merge(state, seen)
        k, v = k[:, :, past:], v[:, :, past:]
    elif n_q > n_k:  # the queries that see no key
        q = q[:, :, n_q - n_k :]
    n = q.shape[2]
    q, k, v = split(q, size), split(k, size, kernel.blank), split(v, size)
    sequence = torch.zeros(k.shape[2], dtype=torch.int, device=k.device)
    out, state = _attend(kernel, fold_groups(q, kv_heads), k, v, sequence, state)
    out = unfold_groups(out, heads).flatten(2, 3)[:, :, :n]
    if n_q > n_k:
        out = F.pad(out, (0, 0, n_q - n_k, 0))
    return out, state


def attend_packed(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    size: int,
    cu_seqlens: Tensor,
    causal: bool,
) -> Tensor:
    """Attention within each of the sequences packed into one row (arguments as above, B = 1)."""
    heads, kv_heads, n = q.shape[1], k.shape[1], q.shape[2]
    slots, sequence = assign(torch.ones(1, n, dtype=torch.bool, device=q.device), size, cu_seqlens)
    q, k, v = fold_groups(slots.split(q), kv_heads), slots.split(k, kernel.blank), slots.split(v)
    if causal:
        out, _ = _attend(kernel, q, k, v, sequence[0], None)
    else:
        own = kernel.sums(k, with_ones(v))
        out = kernel.read(q, per_sequence(own, sequence[0], cu_seqlens.shape[0] - 1))
    return slots.join(unfold_groups(out, heads))


def _attend(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, sequence: Tensor, state: Sums | None
) -> tuple[Tensor, Sums]:
    if k.device.type == "cpu" and not torch.compiler.is_compiling():
        return kernel.attend_in_order(q, k, v, sequence, state)
    return attend_at_once(kernel, q, k, v, sequence, state)


def attend_at_once(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, sequence: Tensor, state: Sums | None
) -> tuple[Tensor, Sums]:
    """Causal attention over chunks, and the sums after the last one.

    Args:
        kernel: the kernel.
        q: `(B, H_kv, M, n · G, D)`.
        k: `(B, H_kv, M, n, D)`.
        v: `(B, H_kv, M, n, E)`.
        sequence: `(M,)` which sequence a chunk belongs to, not decreasing.
        state: what came before, if there is but one sequence; peak `(B, H_kv, D)`.
    """
    v = with_ones(v)
    own = kernel.sums(k, v)
    before = exclusive_prefix(own, sequence)
    if state is not None:
        before = merge(before, Sums(state.peak.unsqueeze(2), state.total.unsqueeze(2)))
    out = kernel.read_causal(q, k, v, before)
    state = merge(
        Sums(before.peak[:, :, -1], before.total[:, :, -1]),
        Sums(own.peak[:, :, -1], own.total[:, :, -1]),
    )
    return out, state
