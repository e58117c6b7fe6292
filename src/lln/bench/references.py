"""What mechanisms are compared with, and the formulas that say what each has to compute."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import lln
from lln.matching import AUTHORS_FIT

Attend = Callable[..., Tensor]
"""A function of q, k and v `(B, H, N, D)`; of those with a causal form `causal` is the fourth."""

ALPHA = BETA = 2.0  # where α and β are given; close to what matching finds for unit variance
BLOCK = 64


@dataclass(frozen=True)
class Reference:
    """A known way to compute, in plain torch or by this package's functions.

    Attributes:
        label: how tables call it.
        attend: the fast form.
        formula: the same from the definition, in O(N²); None where there is nothing to compare.
        causal: both take `causal`.
        multiple: N has to be one of it.
    """

    label: str
    attend: Attend
    formula: Attend | None = None
    causal: bool = False
    multiple: int = 1


def softmax_formula(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Eq. 1."""
    return _average(_exp_scores(q, k, scale), v, causal)


def lln_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    alpha: float | Tensor = ALPHA,
    beta: float | Tensor = BETA,
    shift: float | Tensor = 0.0,
) -> Tensor:
    """Eq. 8, as it stands: nothing is taken off before the exponentials."""
    return _average((alpha * q).exp() @ (beta * (k - shift)).exp().mT, v, causal)


def block_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    block_size: int = BLOCK,
) -> Tensor:
    """Eq. 1 where query and key are in one block."""
    block = torch.arange(q.shape[2], device=q.device) // block_size
    return _average(_exp_scores(q, k, scale) * (block[:, None] == block), v, causal)


def _exp_scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return (q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)).exp()


def _average(weight: Tensor, v: Tensor, causal: bool) -> Tensor:
    weight = weight.tril() if causal else weight
    return weight / weight.sum(-1, keepdim=True) @ v


def _products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _naive(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """What a model does without SDPA."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        n = q.shape[2]
        future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    out: Tensor = scores.softmax(-1) @ v
    return out


def _authors(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The authors' code: moments of the whole batch (Eq. 10 and 11), then Eq. 8."""
    return _authors_given(q, k, v, *_authors_factors(q, k))


@torch.no_grad()
def _authors_factors(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    (a, b), sigma_q, sigma_k = AUTHORS_FIT, q.std(), k.std()
    sigma = (((sigma_q * sigma_k) ** 2 - b) / (2 * a)).sqrt()
    return sigma / sigma_q, sigma / sigma_k


def _authors_given(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor = ALPHA,
    beta: float | Tensor = BETA,
) -> Tensor:
    """Eq. 8 the way the authors' code evaluates it: maxima off, exponentials, divide, eps."""
    q, k = alpha * q, beta * k
    phi_q = (q - q.amax(-1, keepdim=True)).exp()
    phi_k = (k - k.amax((-2, -1), keepdim=True)).exp()
    total = torch.einsum("bhnd,bhd->bhn", phi_q, phi_k.sum(-2)) + 1e-8
    return phi_q @ (phi_k.mT @ v) / total.unsqueeze(-1)


def _authors_formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    alpha, beta = _authors_factors(q, k)
    return lln_formula(q, k, v, alpha=alpha, beta=beta)


def _blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """SDPA within blocks, and nothing else: the limit of what Diag costs."""
    heads = q.shape[1]
    q, k, v = (x.unflatten(2, (-1, BLOCK)).flatten(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v)  # (B, H · N / block, block, D)
    joined: Tensor = out.unflatten(1, (heads, -1)).flatten(2, 3)
    return joined


def _lln(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return lln.lln_attention(q, k, v, alpha=ALPHA, beta=BETA, causal=causal)


def _lln_diag(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return lln.lln_diag_attention(q, k, v, alpha=ALPHA, beta=BETA, block_size=BLOCK, causal=causal)


def _lln_diag_formula(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return (lln_formula(q, k, v, causal) + block_formula(q, k, v, causal)) / 2


REFERENCES = {
    "products": Reference("bare products q (kᵀ v)", _products),
    "sdpa": Reference("SDPA", _sdpa, softmax_formula, causal=True),
    "naive": Reference("softmax in plain torch", _naive, softmax_formula, causal=True),
    "sdpa_blocks": Reference(f"SDPA in blocks of {BLOCK}", _blocks, block_formula, multiple=BLOCK),
    "authors": Reference("LLN, authors' code", _authors, _authors_formula),
    "authors_given": Reference("LLN, authors' code, α, β given", _authors_given, lln_formula),
    "lln_given": Reference("LLN, α, β given", _lln, lln_formula, causal=True),
    "lln_diag_given": Reference("LLN+Diag, α, β given", _lln_diag, _lln_diag_formula, causal=True),
}
