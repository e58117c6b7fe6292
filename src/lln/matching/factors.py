"""From σ̃ to α and β (Eq. 10)."""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.matching.statistics import Statistics
from lln.matching.width import Curve, width


class Factors(NamedTuple):
    """What LLN attention is called with.

    Attributes:
        alpha: `(rows, H)`.
        beta: `(rows, H_kv)`.
        key_shift: `(rows, H_kv, D)`, or None where keys are not centred.
    """

    alpha: Tensor
    beta: Tensor
    key_shift: Tensor | None


@torch.no_grad()
def factors_of(curve: Curve, statistics: Statistics, center_keys: bool) -> Factors:
    """α and β along the curve, corrected as the statistics say."""
    sigma = width(curve, statistics.score_var.sqrt(), statistics.log_keys)  # (rows, H)
    return factors_per_width(statistics, center_keys).at(sigma * statistics.correction.exp())


class FactorsPerWidth(NamedTuple):
    """What σ̃ is multiplied by (Eq. 10): 1 / (√2 σ_q) `(rows, H)`, 1 / (√2 σ_k) `(rows, H_kv)`."""

    alpha: Tensor
    beta: Tensor
    key_shift: Tensor | None

    def at(self, sigma: Tensor) -> Factors:
        """α and β for σ̃ `(rows, H)`.

        Heads that share keys share β too: theirs is the root mean square over the group.
        """
        groups, shared = sigma.shape[1] // self.beta.shape[1], sigma
        if groups > 1:
            shared = sigma.square().unflatten(1, (-1, groups)).mean(2).sqrt()  # (rows, H_kv)
        return Factors(sigma * self.alpha, shared * self.beta, self.key_shift)


def factors_per_width(statistics: Statistics, center_keys: bool) -> FactorsPerWidth:
    """By the variances of q and k; constant ones carry no information, and 0 attends evenly."""
    variances = statistics.query_var, statistics.key_var
    alpha, beta = ((2 * x).rsqrt().masked_fill(x == 0, 0) for x in variances)
    return FactorsPerWidth(alpha, beta, statistics.key_mean if center_keys else None)


def constant_factors(value: float, q: Tensor, k: Tensor) -> Factors:
    """α = β = `value` for any sequence, in one row."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    alpha, beta = (torch.full((1, x.shape[1]), value, dtype=dtype, device=x.device) for x in (q, k))
    return Factors(alpha, beta, None)
