"""Temperature: how the spread of its scores sharpens an attention (Eq. 5 and 11)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lln.attention.base import Attention
from lln.attention.lln import LLNAttention
from lln.attention.lln_diag import LLNDiagAttention
from lln.attention.softmax import SoftmaxAttention
from lln.functional.precision import upcast
from lln.instruments.measures.result import Result
from lln.instruments.measures.sample import over_rows
from lln.instruments.measures.theory import lln_variance
from lln.instruments.of_core import fixed_factors, matrix_of
from lln.matching import linear_fit, measure

BLOCK = 64  # rows at a time


@dataclass(frozen=True)
class Temperature(Result):
    """1/σ of the logarithms of the weights, inf where they do not differ.

    Attributes:
        paper: `(B, H)` from the moments of q and k, as if their elements were independent.
        exact: `(B, H)` from the variance within rows that P has.
    """

    paper: Tensor
    exact: Tensor


@torch.no_grad()
def temperature(
    core: nn.Module,
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    rows: int = 256,
    seed: int = 0,
) -> Temperature:
    """The temperature of an attention, by the paper's formula and exactly.

    `paper` is Eq. 5 without C_cross, 1/(σ_q σ_k) at the usual scale; for `lln`, and for the LLN
    branch of `lln_diag`, it is Eq. 11 with the core's α and β, and with the a and b of its matching
    if it has any, otherwise the calibrated ones. Where a σ̃² + b ≤ 0 Eq. 11 says nothing, and
    `paper` is inf.

    `exact` is 1/√(mean variance of log P within rows). For softmax that is the variance of the
    scores within rows, scale² · tr(QᵀQ/N · cov(k)), over all rows in O(N D²), C_cross included. For
    other attention, and causal one, it is measured on a sample of rows over their positive weights.

    Args:
        core: an `Attention`.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: as in `Attention`.
        rows: of the sample.
        seed: of the sample.
    """
    if not isinstance(core, Attention):
        raise TypeError(f"only a core has a temperature, got {type(core).__name__}")
    if isinstance(core, (LLNAttention, LLNDiagAttention)):
        paper = _lln_variance(core, q, k, key_mask, causal)
    else:
        paper = measure(
            q, k, key_mask=key_mask, scale=core.scale, exact_scores=False, center_keys=False
        ).score_var
    if isinstance(core, SoftmaxAttention) and not causal:
        exact = measure(q, k, key_mask=key_mask, scale=core.scale).score_var
    else:
        matrix = matrix_of(core, q, k, key_mask=key_mask, causal=causal)
        exact = over_rows(matrix, _log_variance, rows, BLOCK, seed)[0]
    return Temperature(_inverse_root(paper), _inverse_root(exact))


def _lln_variance(
    core: LLNAttention | LLNDiagAttention,
    q: Tensor,
    k: Tensor,
    key_mask: Tensor | None,
    causal: bool,
) -> Tensor:
    """Proposition 4.1, `(B, H)`."""
    matching = core.matcher.matching
    found = fixed_factors(core, q, k, key_mask=key_mask, causal=causal)
    moments = measure(q, k, key_mask=key_mask, exact_scores=False, center_keys=matching.center_keys)
    a, b = linear_fit(matching, core.head_dim, moments.log_keys)
    groups = core.heads // core.kv_heads
    beta, key_var = (x.repeat_interleave(groups, dim=1) for x in (found.beta, moments.key_var))
    variance = lln_variance(found.alpha, beta, moments.query_var, key_var, a, b)
    return variance.to(moments.query_var)


def _log_variance(p: Tensor, keep: Tensor) -> Tensor:
    """Variance within rows of the logarithms of the positive weights."""
    positive = p > 0
    count = positive.sum(-1, keepdim=True).clamp(min=1)
    log_p = p.log().masked_fill_(~positive, 0)
    log_p = log_p.sub_(log_p.sum(-1, keepdim=True) / count).masked_fill_(~positive, 0)
    return log_p.square_().sum(-1) / count.squeeze(-1)


def _inverse_root(variance: Tensor) -> Tensor:
    return upcast(variance).clamp(min=0).rsqrt()
