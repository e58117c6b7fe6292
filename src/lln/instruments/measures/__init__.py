"""Measures of attention matrices: pure functions of an `AttentionMatrix`, or of P itself."""

from lln.instruments.measures.branches import BranchShare, branch_share
from lln.instruments.measures.distribution import LogNormality, log_normality
from lln.instruments.measures.gap import SpectralGap, spectral_gap
from lln.instruments.measures.order import monotonicity
from lln.instruments.measures.result import Result
from lln.instruments.measures.rowwise import Entropy, Variance, entropy, entropy_floor, variance
from lln.instruments.measures.temperature import Temperature, temperature
from lln.instruments.measures.theory import (
    Moments,
    broad,
    fenton,
    lln_variance,
    narrow,
    softmax_moments,
)

__all__ = [
    "BranchShare",
    "Entropy",
    "LogNormality",
    "Moments",
    "Result",
    "SpectralGap",
    "Temperature",
    "Variance",
    "branch_share",
    "broad",
    "entropy",
    "entropy_floor",
    "fenton",
    "lln_variance",
    "log_normality",
    "monotonicity",
    "narrow",
    "softmax_moments",
    "spectral_gap",
    "temperature",
    "variance",
]
