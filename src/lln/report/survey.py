"""What every head of a model does with an input, in plain numbers."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lln.instruments.measures import log_normality
from lln.instruments.measures.sample import sample
from lln.instruments.probe import record
from lln.instruments.recording import Capture
from lln.report.subject import Subject

LARGEST_MAP = 80
"""Tokens up to which an attention map can be read."""
LOG_NORMAL = 0.05
"""A head whose log P is nearer to normal than this (Kolmogorov–Smirnov) counts as log-normal."""
TOLERANCE = 1.25
"""A temperature that is off by a larger factor counts as mispredicted."""
BINS, DEVIATIONS = 96, 8.0
"""Histograms reach so many standard deviations to either side."""
MEASURES = ("temperature", "temperature_paper", "entropy", "entropy_error", "gap")
"""What a recording holds of every head."""

Lists: TypeAlias = dict[tuple[int, int], dict[str, list[Any]]]
"""Layer and head → measure → its values, sequence by sequence."""


@dataclass(frozen=True)
class Head:
    """One head of one layer; a measure is the mean over the sequences, None if there is none.

    Attributes:
        layer: its place in `Survey.layers`.
        head: its number.
        temperature: exact.
        temperature_paper: the paper's estimate, from σ_q and σ_k.
        entropy: in bits.
        entropy_error: its standard error, from sampling rows.
        gap: spectral gap.
        distance: of log P from its normal fit (Kolmogorov–Smirnov).
        log_mean: of log P.
        log_variance: of log P.
        excess_kurtosis: of log P.
        density: of log P in bins of `Survey.bin_width` standard deviations about its mean.
        weights: P of the excerpt; None where it is too long to look at.
    """

    layer: int
    head: int
    temperature: float | None
    temperature_paper: float | None
    entropy: float | None
    entropy_error: float | None
    gap: float | None
    distance: float | None
    log_mean: float | None
    log_variance: float | None
    excess_kurtosis: float | None
    density: list[float]
    weights: list[list[float]] | None

    @property
    def log_normal(self) -> bool:
        """Whether log P is close to normal."""
        return self.distance is not None and self.distance < LOG_NORMAL

    @property
    def mispredicted(self) -> bool:
        """Whether σ_q and σ_k give a wrong temperature."""
        if self.temperature is None or self.temperature_paper is None:
            return False
        low, high = sorted((self.temperature, self.temperature_paper))
        return high > TOLERANCE * low


@dataclass(frozen=True)
class Survey:
    """All heads.

    Attributes:
        model: its name.
        source: the name of the input.
        attention: the name of the mechanism.
        sequences: how many were read.
        tokens: of a sequence, on average.
        layers: number and name of each layer measured.
        heads: of all layers.
        bin_width: of the histograms, in standard deviations.
        theory: entropy of softmax attention with Gaussian scores, at each temperature.
        words: the tokens of the excerpt; None without maps.
    """

    model: str
    source: str
    attention: str
    sequences: int
    tokens: float
    layers: list[tuple[int, str]]
    heads: list[Head]
    bin_width: float
    theory: dict[str, list[float]]
    words: list[str] | None


@torch.no_grad()
def survey(
    subject: Subject,
    *,
    layers: Sequence[int] | None = None,
    rows: int = 256,
    advance: Callable[[], object] = lambda: None,
) -> Survey:
    """Measures every head.

    Args:
        subject: the model and its input.
        layers: numbers of the layers to measure; all by default.
        rows: of P that are looked at for entropy and log-normality.
        advance: called after each sequence, and after the excerpt.
    """
    lists: Lists = defaultdict(lambda: defaultdict(list))
    with record(subject.model, layers=layers, rows=rows, keep=True) as recording:
        for sequence in subject.sequences:
            subject.model(**sequence)
            for layer, capture in recording.captures.items():
                _collect_shapes(lists, layer, capture, rows)
            advance()
        seen = list(recording.rows)
        subject.model(**subject.excerpt)
        maps = _maps(recording.captures)
        advance()
    for row in seen:
        for name in MEASURES:
            lists[row["layer"], row["head"]][name].append(row[name])
    names = dict(sorted((row["layer"], row["name"]) for row in seen))
    heads = [
        Head(
            layer=list(names).index(layer),
            head=head,
            density=torch.tensor(columns.pop("density")).mean(0).tolist(),
            weights=maps[layer][head] if maps else None,
            **{name: _mean(column) for name, column in columns.items()},
        )
        for (layer, head), columns in sorted(lists.items())
    ]
    temperatures = [head.temperature for head in heads if head.temperature]
    if not temperatures:
        raise ValueError(f"no head has scores that differ on {subject.source}: nothing to measure")
    tokens = fmean(row["n"] for row in seen)
    words = subject.words or [str(i) for i in range(len(heads[0].weights or []))]
    return Survey(
        model=subject.name,
        source=subject.source,
        attention=str(recording.captures[next(iter(names))].core.name),
        sequences=len(subject.sequences),
        tokens=tokens,
        layers=list(names.items()),
        heads=heads,
        bin_width=2 * DEVIATIONS / BINS,
        theory=_theory(temperatures, round(tokens)),
        words=words if maps else None,
    )


def _mean(column: list[float | None]) -> float | None:
    """Over the sequences that have such a number."""
    numbers = [number for number in column if number is not None and math.isfinite(number)]
    return fmean(numbers) if numbers else None


def _collect_shapes(lists: Lists, layer: int, capture: Capture, rows: int) -> None:
    """How log P is distributed in each head of one sequence."""
    fit = log_normality(capture.matrix, rows=rows)
    index, _ = sample(capture.matrix, rows, 0)
    log_p = capture.matrix.rows(index)[0].log().flatten(1)  # (H, rows · N)
    for head, values in enumerate(log_p):
        columns = lists[layer, head]
        mean, variance = fit.mean[0, head].item(), fit.variance[0, head].item()
        columns["log_mean"].append(mean)
        columns["log_variance"].append(variance)
        columns["distance"].append(fit.kolmogorov_smirnov[0, head].item())
        columns["excess_kurtosis"].append(fit.excess_kurtosis[0, head].item())
        columns["density"].append(_density(values, mean, variance))


def _density(log_p: Tensor, mean: float, variance: float) -> list[float]:
    """In standard deviations about the mean; weights of 0 have no logarithm and no place."""
    finite = log_p[log_p.isfinite()]
    scaled = (finite - mean) / math.sqrt(variance) if variance > 0 else torch.zeros_like(finite)
    counts = torch.histc(scaled, BINS, -DEVIATIONS, DEVIATIONS)
    density: list[float] = (counts / max(1, len(finite)) * BINS / (2 * DEVIATIONS)).tolist()
    return density


def _maps(captures: dict[int, Capture]) -> dict[int, Any]:
    """P layer by layer; nothing where it is too long to look at."""
    maps = {}
    for layer, capture in captures.items():
        if max(capture.matrix.shape[2:]) > LARGEST_MAP:
            return {}
        p = capture.matrix.rows(torch.arange(capture.matrix.shape[2]))[0]  # (H, N_q, N_k)
        maps[layer] = p.double().round(decimals=3).tolist()
    return maps


def _theory(temperatures: list[float], tokens: int) -> dict[str, list[float]]:
    """Mean entropy of softmax over Gaussian scores, across the temperatures that occur."""
    low, high = min(temperatures) / 1.5, max(temperatures) * 1.5
    grid = torch.logspace(math.log10(low), math.log10(high), 60).double()
    scores = torch.randn(64, tokens, generator=torch.Generator().manual_seed(0)).double()
    p = (scores / grid[:, None, None]).softmax(-1)  # (60, 64, tokens)
    bits = torch.special.entr(p).sum(-1).mean(-1) / math.log(2)
    return {"temperature": grid.tolist(), "entropy": bits.tolist()}
