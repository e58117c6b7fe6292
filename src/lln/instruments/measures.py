"""How concentrated an attention is: entropy (Eq. 7) and spectral gap (section 3.2.2).

A measure comes in two forms. The dense one takes the attention matrix P `(B, H, N, N)`. The other
takes `attend(q, k, v)`, any attention that is linear in v, and never forms P: with v = I attention
returns columns of P, with v = x the product P x. `attend` must have its α and β fixed (see
`lln.matching.match`), or they would follow the rows of q that a measure picks out.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lln.functional.precision import or_zero, upcast

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def entropy(p: Tensor) -> Tensor:
    """Mean entropy of the rows of P in bits (Eq. 7), with 0 · log 0 = 0.

    Args:
        p: `(B, H, N_q, N_k)`, rows that sum to 1.

    Returns:
        `(B, H)`.
    """
    return _bits(upcast(p)).mean(-1)


def _bits(p: Tensor) -> Tensor:
    nats: Tensor = torch.special.entr(p)
    return nats.sum(-1) / math.log(2)


@torch.no_grad()
def row_entropy(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    *,
    rows: int | None = None,
    block: int = 256,
    seed: int = 0,
) -> Tensor:
    """Mean entropy in bits of the rows of P, or of a sample of them, from blocks of its columns.

    A sample costs O(rows · N²) and O((rows + N) · block) memory. It is taken out of q, so `attend`
    must treat each query by itself: for causal and block-diagonal attention, where the place of a
    query counts, measure all rows.

    Args:
        attend: the attention, with everything but q, k and v fixed.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        rows: how many rows, drawn without replacement, the same in every head; all by default.
        block: columns of P at a time; changes nothing but speed and memory.
        seed: of the draw.

    Returns:
        `(B, H)`.
    """
    if rows is not None and rows < q.shape[2]:
        drawn = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(seed))[:rows]
        q = q[:, :, drawn.to(q.device)]
    n_k = k.shape[2]
    total = upcast(q.new_zeros(q.shape[:3]))  # (B, H, rows)
    for start in range(0, n_k, block):
        columns = torch.arange(start, min(start + block, n_k), device=k.device)
        v = k.new_zeros(*k.shape[:3], len(columns))
        v[:, :, columns, columns - start] = 1
        total += _bits(upcast(attend(q, k, v)))
    return total.mean(-1)


def spectral_gap(p: Tensor) -> Tensor:
    """γ = 1 − |λ₂| of a stochastic matrix, from all its eigenvalues, O(N³).

    Args:
        p: `(B, H, N, N)`, rows that sum to 1. A matrix of one token has gap 1: the chain is in its
            stationary state at once.

    Returns:
        `(B, H)`, float64, on the CPU.
    """
    return _gap(_centre(upcast(p.detach())))


def _centre(p: Tensor) -> Tensor:
    """P less its mean row: its eigenvalues are those of P, with λ₁ = 1 replaced by 0."""
    centred = p - p.mean(-2, keepdim=True)
    # Equal rows leave nothing but rounding errors, on which LAPACK can fail to converge.
    noise = 8 * torch.finfo(p.dtype).eps * p.abs().amax((-2, -1), keepdim=True)
    return centred.masked_fill(centred.abs() <= noise, 0)


def _gap(centred: Tensor) -> Tensor:
    """1 − the largest modulus of an eigenvalue of `(B, H, M, M)`."""
    eigenvalues: Tensor = torch.linalg.eigvals(centred.cpu().double())
    return 1 - eigenvalues.abs().amax(-1)


@torch.no_grad()
def lln_spectral_gap(
    q: Tensor,
    k: Tensor,
    alpha: float | Tensor,
    beta: float | Tensor,
    *,
    key_mask: Tensor | None = None,
    key_shift: Tensor | None = None,
) -> Tensor:
    """Spectral gap of LLN attention, exact, O(N · D²): P = A Bᵀ has the eigenvalues of Bᵀ A.

    Args:
        q: `(B, H, N, D)`.
        k: `(B, H_kv, N, D)`, H a multiple of H_kv.
        alpha: a number, or a tensor that broadcasts to `(B, H)`.
        beta: a number, or a tensor that broadcasts to `(B, H_kv)`.
        key_mask: `(B, N)` bool, True = keep.
        key_shift: broadcasts to `(B, H_kv, D)`, subtracted from every key.

    Returns:
        `(B, H)`, float64, on the CPU; 1 for a sequence without a kept key.
    """
    q, k = upcast(q), upcast(k)
    groups = q.shape[1] // k.shape[1]
    log_k = k * _per_head(beta, k)
    if key_mask is not None:
        padding = ~key_mask[:, None, :, None]
        q, log_k = q.masked_fill(padding, 0), log_k.masked_fill(padding, -torch.inf)
    z = log_k.logsumexp(-2, keepdim=True)  # (B, H_kv, 1, D)
    b = (log_k - or_zero(z)).exp().repeat_interleave(groups, dim=1)  # (B, H, N, D)
    if key_shift is not None:
        z = z - _per_head(beta, k) * key_shift.to(k).expand(*k.shape[:2], -1).unsqueeze(2)
    a = (q * _per_head(alpha, q) + or_zero(z).repeat_interleave(groups, dim=1)).softmax(-1)
    return _gap(b.mT @ _centre(a))


def _per_head(factor: float | Tensor, x: Tensor) -> Tensor:
    """α or β as `(B, H, 1, 1)`."""
    factor = torch.as_tensor(factor, dtype=x.dtype, device=x.device)
    return factor.expand(x.shape[:2])[..., None, None]


@torch.no_grad()
def spectral_gap_of(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    *,
    tolerance: float = 1e-3,
    max_products: int = 128,
    seed: int = 0,
) -> Tensor:
    """Spectral gap of any stochastic attention from products P x alone, all heads at once.

    Arnoldi's method on the centred P, x ↦ P x − mean(P x), whose eigenvalues are those of P with
    λ₁ = 1 replaced by 0. It keeps all of its vectors, up to `max_products` of length N, rather than
    restart: a product costs far more than a vector. λ₂ of random inputs lies at the edge of a disc
    full of eigenvalues; there, 60 products give three digits.

    Args:
        attend: the attention, with everything but q, k and v fixed; its rows sum to 1.
        q: `(B, H, N, D)`.
        k: `(B, H, N, D)`.
        tolerance: stop when the residual ‖P x − λ₂ x‖ of every head is below it.
        max_products: stop here at the latest.
        seed: of the starting vectors.

    Returns:
        `(B, H)`, float64, on the CPU.
    """
    if q.shape[:3] != k.shape[:3]:
        raise ValueError(
            "the spectral gap needs as many queries and query heads as keys and key heads, "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    batch, heads, n, _ = q.shape
    steps = max(1, min(max_products, n - 1))  # vectors of mean 0 span n − 1 dimensions
    start = torch.randn(batch, heads, n, 1, generator=torch.Generator().manual_seed(seed))
    start = upcast((start - start.mean(2, keepdim=True)).to(q))
    basis = start.new_zeros(batch, heads, n, steps + 1)
    basis[..., :1] = _unit(start, start.norm(dim=2, keepdim=True))
    hessenberg = torch.zeros(batch, heads, steps + 1, steps, dtype=torch.float64)
    largest = torch.zeros(batch, heads, dtype=torch.float64)
    for step in range(1, steps + 1):
        known = basis[..., :step]
        newest = basis[..., step - 1 : step].to(q.dtype).contiguous()
        product = upcast(attend(q, k, newest))  # (B, H, N, 1)
        scale = product.norm(dim=2, keepdim=True)
        product = product - product.mean(2, keepdim=True)
        for _ in range(2):  # once leaves rounding errors that grow into false eigenvalues
            share = known.mT @ product  # (B, H, step, 1)
            product = product - known @ share
            hessenberg[..., :step, step - 1] += share.squeeze(-1).cpu()
        norm = product.norm(dim=2, keepdim=True)  # (B, H, 1, 1)
        norm = norm.where(norm > 8 * torch.finfo(norm.dtype).eps * scale, 0)
        hessenberg[..., step, step - 1] = norm[..., 0, 0].cpu()
        basis[..., step : step + 1] = _unit(product, norm)
        if step % 8 == 0 or step == steps:
            values, vectors = torch.linalg.eig(hessenberg[..., :step, :step])
            largest, place = values.abs().max(-1)
            last = vectors[..., -1, :].gather(-1, place.unsqueeze(-1)).squeeze(-1)
            if (hessenberg[..., step, step - 1] * last.abs()).max() < tolerance:
                break
    return 1 - largest


def _unit(x: Tensor, norm: Tensor) -> Tensor:
    """Of length 1, or 0 where nothing is left: the vectors before span all that P reaches."""
    return torch.where(norm > 0, x / norm.masked_fill(norm == 0, 1), 0)
