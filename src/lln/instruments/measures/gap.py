"""Spectral gap of P (section 3.2.2), and what Theorem 3.3 compares it with.

The centred P̄ = P − 1 μᵀ, with μ the mean row of P over the real queries, has the eigenvalues of P
with λ₁ = 1 replaced by 0 (Wielandt's deflation; 1 is P's eigenvector, because its rows sum to 1).
Its largest modulus is |λ₂|; its largest singular value is the root of the variance along the main
principal component. The theorem takes them for equal, which they are if P̄ is normal. In general
|λ₂| ≤ σ_max.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lln.functional.checks import check_positive
from lln.instruments.matrix import AttentionMatrix, FactoredMatrix
from lln.instruments.measures.result import Result
from lln.instruments.measures.sample import as_matrix

SMALL = 64  # tokens: all eigenvalues of so small a matrix cost less than a search for one


@dataclass(frozen=True)
class SpectralGap(Result):
    """The gap and its parts, `(B, H)` each, float64 on the CPU.

    Attributes:
        gap: γ = 1 − |λ₂|.
        second_eigenvalue: |λ₂|.
        largest_singular_value: σ_max of the centred P; NaN where it was not asked for.
    """

    gap: Tensor
    second_eigenvalue: Tensor
    largest_singular_value: Tensor


@torch.no_grad()
def spectral_gap(
    matrix: AttentionMatrix | Tensor,
    *,
    tolerance: float = 1e-4,
    max_products: int = 128,
    seed: int = 0,
    singular: bool = True,
) -> SpectralGap:
    """Spectral gap of an attention whose rows sum to 1.

    A `FactoredMatrix` A Bᵀ with F features is decomposed exactly in O(N F²): the eigenvalues are
    those of the F × F matrix Bᵀ Ā, the singular values those of R_Ā R_Bᵀ, the factors of QR. So is
    any matrix of at most 64 tokens, in O(N³). Of other ones both values are found from products
    alone, by Arnoldi's method, whose vectors are all kept: a product costs far more than a vector.
    λ₂ of random inputs lies at the edge of a disc full of eigenvalues; there, 60 products give
    three digits.

    Args:
        matrix: the attention, or P `(B, H, N, N)`.
        tolerance: stop when the residual ‖P̄ x − λ₂ x‖ of every head is below it.
        max_products: stop here at the latest; with N of them the result is exact.
        seed: of the starting vectors.
        singular: find σ_max too. Where that takes products, it takes some with Pᵀ, the dear ones.

    Returns:
        A gap of 1 for a sequence of one token or none: the chain is in its stationary state.
    """
    matrix = as_matrix(matrix)
    check_positive("max_products", max_products)
    batch, heads, n_q, n_k = matrix.shape
    if n_q != n_k:
        raise ValueError(
            f"the spectral gap needs as many queries as keys, got P of shape {matrix.shape}"
        )
    if 0 in matrix.shape:
        eigenvalue = largest = torch.zeros(batch, heads, dtype=torch.float64)
    elif isinstance(matrix, FactoredMatrix):
        eigenvalue, largest = _of_factors(matrix)
    elif n_k <= SMALL:
        p = matrix.rows(torch.arange(n_k, device=matrix.device))
        centred = _deflate(p, matrix.queries)
        eigenvalue, largest = _largest_eigenvalue(centred), _largest_singular_value(centred)
    else:
        eigenvalue, largest = _of_products(matrix, tolerance, max_products, seed, singular)
    return SpectralGap(1 - eigenvalue, eigenvalue, largest)


def _deflate(p: Tensor, real: Tensor) -> Tensor:
    """Takes the mean over real rows off `(B, H, N, M)`; padded rows are and stay 0."""
    centred = _centre(p, real)
    # Equal rows leave nothing but rounding errors, on which LAPACK can fail to converge.
    noise = 8 * torch.finfo(p.dtype).eps * p.abs().amax((-2, -1), keepdim=True)
    return centred.masked_fill(centred.abs() <= noise, 0).cpu().double()


def _centre(x: Tensor, real: Tensor) -> Tensor:
    count = real.sum(-1).clamp(min=1)[:, None, None, None]
    real = real[:, None, :, None]
    mean = x.masked_fill(~real, 0).sum(-2, keepdim=True) / count
    return (x - mean).masked_fill(~real, 0)


def _largest_eigenvalue(x: Tensor) -> Tensor:
    eigenvalues: Tensor = torch.linalg.eigvals(x)
    return eigenvalues.abs().amax(-1)


def _largest_singular_value(x: Tensor) -> Tensor:
    values: Tensor = torch.linalg.svdvals(x)
    return values.amax(-1)


def _of_factors(matrix: FactoredMatrix) -> tuple[Tensor, Tensor]:
    a, b = _deflate(matrix.a, matrix.queries), matrix.b.cpu().double()
    eigenvalue = _largest_eigenvalue(b.mT @ a)
    left, right = (torch.linalg.qr(x, mode="r").R for x in (a, b))
    return eigenvalue, _largest_singular_value(left @ right.mT)


def _of_products(
    matrix: AttentionMatrix, tolerance: float, max_products: int, seed: int, singular: bool
) -> tuple[Tensor, Tensor]:
    batch, heads, n, _ = matrix.shape
    real = matrix.queries
    start = torch.randn(batch, heads, n, 1, generator=torch.Generator().manual_seed(seed))
    start = _centre(start.to(matrix.device, matrix.dtype), real)

    def centred(x: Tensor) -> Tensor:
        return _centre(matrix.product(x), real)

    def squared(x: Tensor) -> Tensor:
        return _centre(matrix.adjoint(centred(x)), real)

    eigenvalue = _arnoldi(centred, start, tolerance, max_products)
    if not singular:
        return eigenvalue, torch.full_like(eigenvalue, torch.nan)
    # The square of σ_max is an eigenvalue too, and of a symmetric matrix, where residuals overrate
    # the error by far.
    return eigenvalue, _arnoldi(squared, start, tolerance, max_products).sqrt()


def _arnoldi(
    apply: Callable[[Tensor], Tensor], start: Tensor, tolerance: float, max_products: int
) -> Tensor:
    """The largest modulus of an eigenvalue, for all heads at once.

    Args:
        apply: maps `(B, H, N, 1)` to the same, and vectors of mean 0 to such vectors.
        start: `(B, H, N, 1)`, of mean 0.
        tolerance: of the residual.
        max_products: how often `apply` is called at most.

    Returns:
        `(B, H)`, float64, on the CPU.
    """
    batch, heads, n, _ = start.shape
    steps = max(1, min(max_products, n - 1))  # vectors of mean 0 span n − 1 dimensions
    basis = start.new_zeros(batch, heads, n, steps + 1)
    basis[..., :1] = _unit(start, start.norm(dim=2, keepdim=True))
    hessenberg = torch.zeros(batch, heads, steps + 1, steps, dtype=torch.float64)
    largest = torch.zeros(batch, heads, dtype=torch.float64)
    for step in range(1, steps + 1):
        known = basis[..., :step]
        product = apply(basis[..., step - 1 : step].contiguous())  # (B, H, N, 1)
        scale = product.norm(dim=2, keepdim=True)
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
    return largest


def _unit(x: Tensor, norm: Tensor) -> Tensor:
    """Of length 1, or 0 where nothing is left: the vectors before span all that P reaches."""
    return torch.where(norm > 0, x / norm.masked_fill(norm == 0, 1), 0)
