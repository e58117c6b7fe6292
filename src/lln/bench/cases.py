"""What the benchmarks compare: attentions as functions of q, k and v, and their formulas."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import lln
from lln import functional

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

ALPHA = BETA = 2.0  # where α and β are given; close to what matching finds for unit variance
BLOCK = 64


class Inputs(NamedTuple):
    """q, k, v and the gradient of the output, `(B, H, N, D)`."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        label: how tables call it.
        attend: the attention.
        formula: the same from the paper's formula, in O(N²); None for what is no attention.
    """

    label: str
    attend: Attend
    formula: Attend | None = None


def inputs(
    batch: int,
    heads: int,
    n: int,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    std: float = 1.0,
    seed: int = 0,
) -> Inputs:
    """Gaussian inputs; q and k have standard deviation `std`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, n, head_dim)
    q, k, v, grad = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(4))
    q, k, v = (x.mul_(s).to(device).requires_grad_() for x, s in ((q, std), (k, std), (v, 1.0)))
    return Inputs(q, k, v, grad.to(device))


def call(case: Case, x: Inputs, *, backward: bool) -> Callable[[], object]:
    """The case's forward pass without gradients, or its forward and backward pass."""

    @torch.no_grad()
    def forward() -> Tensor:
        return case.attend(x.q, x.k, x.v)

    def both() -> tuple[Tensor, ...]:
        out = case.attend(x.q, x.k, x.v)
        return torch.autograd.grad(out, (x.q, x.k, x.v), x.grad)

    return both if backward else forward


def verify(names: Iterable[str]) -> None:
    """Raises unless the cases do what their formulas say: a wrong result has no speed."""
    x = inputs(1, 2, 96, 64)  # blocks of 64 and 32
    for name in names:
        case = CASES[name]
        if case.formula is None:
            continue
        with torch.no_grad():
            error = (case.attend(x.q, x.k, x.v) - case.formula(x.q, x.k, x.v)).abs().max().item()
        if not error < 1e-4:
            raise RuntimeError(f"{name} differs from its formula by {error:.1e}: not timed")


def _products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v)


def _authors(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eq. 8 the way the authors' code evaluates it: maxima off, exponentials, divide, eps."""
    q, k = ALPHA * q, BETA * k
    phi_q = (q - q.amax(-1, keepdim=True)).exp()
    phi_k = (k - k.amax((-2, -1), keepdim=True)).exp()
    total = torch.einsum("bhnd,bhd->bhn", phi_q, phi_k.sum(-2)) + 1e-8
    return phi_q @ (phi_k.mT @ v) / total.unsqueeze(-1)


def _lln(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return lln.lln_attention(q, k, v, alpha=ALPHA, beta=BETA)


def _lln_diag(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return lln.lln_diag_attention(q, k, v, alpha=ALPHA, beta=BETA, block_size=BLOCK)


def _block_diag(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.block_diagonal_attention(q, k, v, block_size=BLOCK)


def _lln_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return lln.lln_attention(q, k, v, alpha=ALPHA, beta=BETA, causal=True)


def _sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _average(weight: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    weight = weight.tril() if causal else weight
    return weight / weight.sum(-1, keepdim=True) @ v


def _softmax_formula(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return _average((q @ k.mT * q.shape[-1] ** -0.5).exp(), v, causal)


def _lln_formula(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return _average((ALPHA * q).exp() @ (BETA * k).exp().mT, v, causal)


def _matched_formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = lln.matching.match("entropy", q, k)
    shift = 0 if found.key_shift is None else found.key_shift.unsqueeze(2)
    alpha, beta = found.alpha[..., None, None], found.beta[..., None, None]
    return _average((alpha * q).exp() @ (beta * (k - shift)).exp().mT, v)


def _block_formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    block = torch.arange(q.shape[2], device=q.device) // BLOCK
    return _average((q @ k.mT * q.shape[-1] ** -0.5).exp() * (block[:, None] == block), v)


CASES = {
    "products": Case("bare products q (kᵀ v)", _products),
    "sdpa": Case("SDPA", F.scaled_dot_product_attention, _softmax_formula),
    "authors": Case("LLN, authors' formula", _authors, _lln_formula),
    "lln": Case("LLN, α, β given", _lln, _lln_formula),
    "lln_matched": Case("LLN, α, β found", lln.lln_attention, _matched_formula),
    "lln_diag": Case(
        "LLN+Diag, α, β given",
        _lln_diag,
        lambda q, k, v: (_lln_formula(q, k, v) + _block_formula(q, k, v)) / 2,
    ),
    "lln_diag_matched": Case(
        "LLN+Diag, α, β found",
        lln.lln_diag_attention,
        lambda q, k, v: (_matched_formula(q, k, v) + _block_formula(q, k, v)) / 2,
    ),
    "block_diag": Case("block-diagonal alone", _block_diag, _block_formula),
    "lln_causal": Case(
        "causal LLN, α, β given", _lln_causal, lambda q, k, v: _lln_formula(q, k, v, True)
    ),
    "sdpa_causal": Case(
        "causal SDPA", _sdpa_causal, lambda q, k, v: _softmax_formula(q, k, v, True)
    ),
}
