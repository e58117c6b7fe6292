"""What the paper predicts for Gaussian queries and keys: Propositions 3.1 and 4.1, Eq. 27–33."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.measures.result import Result

Number = float | Tensor


@dataclass(frozen=True)
class Moments(Result):
    """Parameters of a log-normal distribution: mean and variance of the logarithm.

    Attributes:
        mean: float64.
        variance: float64, of the same shape.
    """

    mean: Tensor
    variance: Tensor


def softmax_moments(score_variance: Number, n: int) -> Moments:
    """Of softmax's P over n keys: mean −ln n − σ²/2 and variance σ² (Proposition 3.1)."""
    variance = _tensor(score_variance)
    return Moments(-math.log(n) - variance / 2, variance)


def fenton(variance: Number, count: int) -> Moments:
    """Of a sum of `count` log-normal variables with parameters 0 and σ² (moderate: Eq. 28, 29)."""
    single = _tensor(variance)
    total = torch.log1p(torch.expm1(single) / count)
    return Moments(math.log(count) + (single - total) / 2, total)


def narrow(variance: Number, count: int) -> Tensor:
    """Variance of the same sum itself, count · σ², for σ² ≪ 1 (narrow: Eq. 27).

    Not of its logarithm, which Eq. 32 adds up and which is σ² / count: the limit of `fenton`.
    """
    return count * _tensor(variance)


def broad(variance: Number, a: Number, b: Number) -> Tensor:
    """Variance of the logarithm of the same sum, a σ² + b, for σ² > 1 (broad: Eq. 30, 31)."""
    return _tensor(a) * _tensor(variance) + _tensor(b)


def lln_variance(
    alpha: Number, beta: Number, query_variance: Number, key_variance: Number, a: Number, b: Number
) -> Tensor:
    """Variance of log P under LLN, a (α² σ_q² + β² σ_k²) + b (Proposition 4.1)."""
    queries = _tensor(alpha).square() * _tensor(query_variance)
    return broad(queries + _tensor(beta).square() * _tensor(key_variance), a, b)


def _tensor(x: Number) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)
