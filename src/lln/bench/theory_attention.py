"""Figures 2, 5 and 7: entropy, spectral gap and log P of attention to Gaussian q and k."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lln
from lln.bench.theory_sums import line
from lln.functional import softmax_attention
from lln.instruments import (
    entropy,
    fenton,
    log_normality,
    softmax_moments,
    spectral_gap,
    variance,
)
from lln.matching import Matching

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Measured = dict[str, dict[str, Tensor]]
"""Attention → measure → `(variances, draws, ...)`."""

SOFTMAX: dict[str, Attend] = {"softmax": softmax_attention}
LLN: dict[str, Attend] = {
    "lln": partial(lln.lln_attention, alpha=1.0, beta=1.0),
    "lln_paper": partial(lln.lln_attention, matching="paper"),
    "lln_variance": partial(lln.lln_attention, matching=Matching(target="variance")),
    "lln_entropy": partial(lln.lln_attention, matching="entropy"),
}
KERNELS = ("relu_kernel", "quadratic_kernel", "relu", "quadratic")
BINS = 160


@dataclass(frozen=True)
class Inputs:
    """Gaussian queries and keys.

    Attributes:
        variances: σ² of q and of k alike, ascending: the scores have variance σ⁴, the temperature
            is 1/σ².
        head_dims: d.
        n: tokens.
        draws: of q and k, the same for every σ²; results are means and standard deviations.
        seed: of the draws.
    """

    variances: Sequence[float]
    head_dims: Sequence[int] = (64,)
    n: int = 1024
    draws: int = 8
    seed: int = 0

    @property
    def steps(self) -> int:
        """How often a measurement calls `advance`."""
        return len(self.head_dims) * len(self.variances) * self.draws


def concentration(setting: Inputs, advance: Callable[[], object]) -> dict[str, Any]:
    """Figure 2: entropy and spectral gap against temperature; with them, Theorems 3.2 to 3.4."""
    (head_dim,) = setting.head_dims
    kernels = {name: lln.build_core(name, heads=1, head_dim=head_dim) for name in KERNELS}
    found = _measure(setting, head_dim, SOFTMAX | LLN | kernels, _concentration_of, advance)
    softmax = found["softmax"]
    monotone = {
        "entropy rises": softmax["entropy"],
        "gap rises": softmax["gap"],
        "variance falls": -softmax["variance"],
    }
    summary = [
        f"softmax: {claim} with temperature in {_rising(values)} of {setting.draws} draws"
        for claim, values in monotone.items()
    ]
    for name in LLN:
        off = {m: (found[name][m] - softmax[m]).mean(1).abs().max() for m in ("entropy", "gap")}
        summary.append(
            f"{name}: mean entropy within {off['entropy']:.2f} bits of softmax's, "
            f"mean gap within {off['gap']:.3f}"
        )
    for name in KERNELS:
        bits = found[name]["entropy"]
        change = (bits.amax(0) - bits.amin(0)).max()
        summary.append(f"{name}: entropy changes by {change:.0e} bits over all temperatures")
    for name in ("softmax", "lln_variance", "lln_entropy"):
        ratio = (1 - found[name]["gap"]) / found[name]["singular"]
        summary.append(
            f"{name}: |λ₂| / σ_max of the centred P from {ratio.min():.2f} to {ratio.max():.2f}"
        )
    return {"results": _rows(setting, head_dim, found), "summary": summary}


def _rising(values: Tensor) -> int:
    """In how many draws `(variances, draws)` rises with the temperature at each step."""
    return int((values.flip(0).diff(dim=0) > 0).all(0).sum())


def _concentration_of(p: Tensor) -> dict[str, Tensor]:
    spectrum = spectral_gap(p)
    return {
        "entropy": entropy(p).bits,
        "gap": spectrum.gap,
        "singular": spectrum.largest_singular_value,
        "variance": variance(p).mean,
    }


def log_moments(setting: Inputs, advance: Callable[[], object]) -> dict[str, Any]:
    """Figure 5a: mean and variance of log P of softmax against Proposition 3.1."""
    (head_dim,) = setting.head_dims
    found = _measure(setting, head_dim, SOFTMAX, _log_moments_of, advance)
    results = _rows(setting, head_dim, found)
    for row in results:
        predicted = softmax_moments(row["variance"] ** 2, setting.n)
        row["predicted"] = {"mean": float(predicted.mean), "variance": float(predicted.variance)}
        row["percent"] = {
            measure: 100 * (row["softmax"][measure] / value - 1)
            for measure, value in row["predicted"].items()
        }
    summary = [
        f"σ² = {row['variance']:g}: mean {row['percent']['mean']:+.2f} %, "
        f"variance {row['percent']['variance']:+.2f} % from Proposition 3.1"
        for row in results
    ]
    return {"results": results, "summary": summary}


def _log_moments_of(p: Tensor) -> dict[str, Tensor]:
    log_p = p.log()
    return {"mean": log_p.mean(), "variance": log_p.var()}


def matched_variance(setting: Inputs, advance: Callable[[], object]) -> dict[str, Any]:
    """Figure 5b: the variance of log P of LLN before and after moment matching."""
    attentions = SOFTMAX | {name: LLN[name] for name in ("lln", "lln_paper", "lln_variance")}
    results, summary = [], []
    for head_dim in setting.head_dims:
        found = _measure(setting, head_dim, attentions, _log_moments_of, advance)
        rows = _rows(setting, head_dim, found)
        for row in rows:
            # Proposition 4.1 at α = β = 1 in its moderate form, Eq. 28, 29 and 32.
            width = 2 * row["variance"]
            sums = (fenton(width, head_dim), fenton(width, setting.n))
            row["predicted"] = {"lln": sum(float(each.variance) for each in sums)}
        results += rows
        for name in ("lln_variance", "lln_paper"):
            ratio = [row[name]["variance"] / row["softmax"]["variance"] for row in rows]
            span = f"{min(ratio):.2f} to {max(ratio):.2f}"
            summary.append(f"d = {head_dim}, {name}: variance {span} of softmax's")
        ratio = [row["lln"]["variance"] / row["predicted"]["lln"] for row in rows]
        variances = torch.tensor(setting.variances, dtype=torch.float64)
        r2 = line(variances, found["lln"]["variance"].mean(1))[2]
        summary.append(
            f"d = {head_dim}, lln: variance {min(ratio):.2f} to {max(ratio):.2f} of Eq. 32; "
            f"a line in σ² has R² = {r2:.3f}"
        )
    return {"results": results, "summary": summary}


def distribution(setting: Inputs, advance: Callable[[], object]) -> dict[str, Any]:
    """Figure 7: histograms of log P of softmax and of LLN before and after moment matching."""
    (head_dim,), (sigma2,) = setting.head_dims, setting.variances
    start, stop = -math.log(setting.n) - 6 * sigma2, 0.0

    def histogram(p: Tensor) -> dict[str, Tensor]:
        log_p, fit = p.log(), log_normality(p)
        return {
            "mean": log_p.mean(),
            "variance": log_p.var(),
            "kolmogorov_smirnov": fit.kolmogorov_smirnov,
            "excess_kurtosis": fit.excess_kurtosis,
            "density": log_p.histc(BINS, start, stop) * BINS / (stop - start) / log_p.numel(),
        }

    found = _measure(setting, head_dim, SOFTMAX | LLN, histogram, advance)
    density = {name: each.pop("density").mean((0, 1)).tolist() for name, each in found.items()}
    (row,) = _rows(setting, head_dim, found)
    summary = [
        f"{name}: mean {row[name]['mean']:.2f} ({row[name]['mean'] - row['softmax']['mean']:+.2f} "
        f"from softmax), variance {row[name]['variance']:.2f}, KS distance from a normal "
        f"{row[name]['kolmogorov_smirnov']:.3f}, excess kurtosis {row[name]['excess_kurtosis']:.2f}"
        for name in found
    ]
    results = {**row, "range": [start, stop], "density": density}
    return {"results": [results], "summary": summary}


@torch.no_grad()
def _measure(
    setting: Inputs,
    head_dim: int,
    attentions: dict[str, Attend],
    measures: Callable[[Tensor], dict[str, Tensor]],
    advance: Callable[[], object],
) -> Measured:
    """What `measures` says of P `(1, 1, N, N)` of each attention."""
    generator = torch.Generator().manual_seed(setting.seed)
    shape = (2, setting.draws, 1, 1, setting.n, head_dim)
    queries, keys = torch.randn(shape, generator=generator, dtype=torch.float64)
    identity = torch.eye(setting.n, dtype=torch.float64)[None, None]
    values: dict[str, dict[str, list[Tensor]]] = {name: {} for name in attentions}
    for sigma2 in setting.variances:
        for q, k in zip(queries * sigma2**0.5, keys * sigma2**0.5, strict=True):
            for name, attend in attentions.items():
                for measure, value in measures(attend(q, k, identity)).items():
                    values[name].setdefault(measure, []).append(value.squeeze())
            advance()
    return {
        name: {
            measure: torch.stack(each).unflatten(0, (-1, setting.draws))
            for measure, each in found.items()
        }
        for name, found in values.items()
    }


def _rows(setting: Inputs, head_dim: int, found: Measured) -> list[dict[str, Any]]:
    """One row for each σ²: means over draws, and standard deviations of single draws."""
    rows: list[dict[str, Any]] = []
    for place, sigma2 in enumerate(setting.variances):
        row: dict[str, Any] = {"head_dim": head_dim, "variance": sigma2, "temperature": 1 / sigma2}
        for name, measures in found.items():
            row[name] = {}
            for measure, values in measures.items():
                row[name][measure] = values[place].mean().item()
                row[name][f"{measure}_std"] = values[place].std().item()
        rows.append(row)
    return rows
