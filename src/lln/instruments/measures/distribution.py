"""Is P log-normal? The normal distribution fitted to log P, and how far log P is from it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.instruments.matrix import AttentionMatrix
from lln.instruments.measures.result import Result
from lln.instruments.measures.sample import as_matrix, sample

LEVELS = 101  # quantiles, at (i + ½) / 101: from −2.6 to 2.6 standard deviations


@dataclass(frozen=True)
class LogNormality(Result):
    """log P (natural logarithm) beside the normal distribution of its mean and variance.

    Attributes:
        count: `(B, H)` how many positive weights were looked at; the rest is 0 if none.
        mean: `(B, H)` of log P.
        variance: `(B, H)` of log P.
        kolmogorov_smirnov: `(B, H)` the largest difference of the distribution functions.
        excess_kurtosis: `(B, H)` 0 for a normal distribution.
        quantiles: `(B, H, 101)` of log P, at (i + ½) / 101.
        normal_quantiles: `(B, H, 101)` of the fit, at the same levels.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    kolmogorov_smirnov: Tensor
    excess_kurtosis: Tensor
    quantiles: Tensor
    normal_quantiles: Tensor


@torch.no_grad()
def log_normality(
    matrix: AttentionMatrix | Tensor, *, rows: int = 256, seed: int = 0
) -> LogNormality:
    """How log-normal the positive weights of P are; O(rows · N log N), all in memory at once.

    Args:
        matrix: the attention, or P `(B, H, N_q, N_k)`.
        rows: how many are looked at, drawn without replacement.
        seed: of the draw.
    """
    matrix = as_matrix(matrix)
    index, real = sample(matrix, rows, seed)
    p = matrix.rows(index)  # (B, H, r, N_k)
    measured = [
        _measure(p[i, head][real[i]]) for i in range(p.shape[0]) for head in range(p.shape[1])
    ]
    fields = (
        torch.stack(column).unflatten(0, p.shape[:2]) for column in zip(*measured, strict=True)
    )
    return LogNormality(*fields)


def _measure(p: Tensor) -> tuple[Tensor, ...]:
    """The fields of the result for one head."""
    log_p = p[p > 0].log().sort().values
    level = (torch.arange(LEVELS, dtype=p.dtype, device=p.device) + 0.5) / LEVELS
    count = len(log_p)
    if count == 0:
        nothing = p.new_zeros(())
        return torch.zeros((), dtype=torch.long), *(nothing,) * 4, *(torch.zeros_like(level),) * 2
    mean = log_p.mean()
    variance = (log_p - mean).square().mean()
    quantiles = log_p[(level * count).long().clamp(max=count - 1)]
    normal = mean + variance.sqrt() * torch.special.ndtri(level)
    # Equal weights differ by rounding errors only, which have no distribution to speak of.
    noise = (8 * torch.finfo(p.dtype).eps * max(1.0, mean.abs().item())) ** 2
    if variance <= noise:
        distance = kurtosis = torch.zeros_like(mean)
    else:
        standard = (log_p - mean) / variance.sqrt()
        fitted = torch.special.ndtr(standard)
        below = torch.arange(count, dtype=p.dtype, device=p.device) / count
        distance = torch.maximum(fitted - below, below + 1 / count - fitted).amax()
        kurtosis = standard.pow(4).mean() - 3
    return torch.tensor(count), mean, variance, distance, kurtosis, quantiles, normal
