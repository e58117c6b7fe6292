"""What the benchmarks compare: attentions as functions of q, k and v, and their formulas."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lln
from lln.registry import entry

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
        make: the attention for so many heads, of such a dimension, for sequences of such a length.
        formula: the same from the paper's formula, in O(N²); None where the tests alone judge it.
    """

    label: str
    make: Callable[[int, int, int], Attend]
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
    _, heads, n, head_dim = x.q.shape
    attend = case.make(heads, head_dim, n)
    learned: tuple[Tensor, ...] = ()
    if isinstance(attend, nn.Module):
        learned = tuple(attend.to(x.q).parameters())

    @torch.no_grad()
    def forward() -> Tensor:
        return attend(x.q, x.k, x.v)

    def both() -> tuple[Tensor | None, ...]:
        out = attend(x.q, x.k, x.v)
        # Not every mechanism reads all three.
        return torch.autograd.grad(out, (x.q, x.k, x.v, *learned), x.grad, allow_unused=True)

    return both if backward else forward


def verify(names: Iterable[str]) -> None:
    """Raises unless the cases do what their formulas say: a wrong result has no speed."""
    x = inputs(1, 2, 96, 64)  # blocks of 64 and 32
    for name in names:
        case = find(name)
        if case.formula is None:
            continue
        with torch.no_grad():
            out = case.make(2, 64, 96)(x.q, x.k, x.v)
            error = (out - case.formula(x.q, x.k, x.v)).abs().max().item()
        if not error < 1e-4:
            raise RuntimeError(f"{name} differs from its formula by {error:.1e}: not timed")


def names() -> list[str]:
    """Everything that can be measured: what to compare with, then the registered mechanisms."""
    return [*REFERENCES, *lln.available()]


def find(name: str) -> Case:
    """The case of that name."""
    return REFERENCES[name] if name in REFERENCES else _mechanism(name)


def _mechanism(name: str) -> Case:
    found = entry(name)

    def make(heads: int, head_dim: int, n: int) -> Attend:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if found.kind == "core":
                return lln.build_core(name, heads=heads, head_dim=head_dim, max_len=n)
            return _OnTokens(lln.build(name, dim=heads * head_dim, heads=heads, max_len=n))

    label = found.paper if found.kind == "core" else f"{found.paper}, with projections"
    return Case(label, make, FORMULAS.get(name))


class _OnTokens(nn.Module):
    """A mixer called like a core: the heads of q are its tokens' features, k and v are not read."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed: Tensor = self.mixer(q.transpose(1, 2).flatten(2)).unflatten(2, q.shape[1::2])
        return mixed.transpose(1, 2)


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


def _reference(label: str, attend: Attend, formula: Attend | None = None) -> Case:
    return Case(label, lambda heads, head_dim, n: attend, formula)


# What the mechanisms are compared with.
REFERENCES = {
    "products": _reference("bare products q (kᵀ v)", _products),
    "sdpa": _reference("SDPA", F.scaled_dot_product_attention, _softmax_formula),
    "authors": _reference("LLN, authors' formula", _authors, _lln_formula),
    "lln_given": _reference("LLN, α, β given", _lln, _lln_formula),
    "lln_diag_given": _reference(
        "LLN+Diag, α, β given",
        _lln_diag,
        lambda q, k, v: (_lln_formula(q, k, v) + _block_formula(q, k, v)) / 2,
    ),
    "lln_given_causal": _reference(
        "causal LLN, α, β given", _lln_causal, lambda q, k, v: _lln_formula(q, k, v, True)
    ),
    "sdpa_causal": _reference(
        "causal SDPA", _sdpa_causal, lambda q, k, v: _softmax_formula(q, k, v, True)
    ),
}

# Of registered mechanisms, checked before they are timed.
FORMULAS: dict[str, Attend] = {
    "softmax": _softmax_formula,
    "lln": _matched_formula,
    "lln_diag": lambda q, k, v: (_matched_formula(q, k, v) + _block_formula(q, k, v)) / 2,
    "block_diag": _block_formula,
}
