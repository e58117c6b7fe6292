"""Calibration of moment matching: which σ̃ makes LLN as concentrated as softmax attention (A.7).

With Gaussian q and k both attentions depend on one number each: softmax on the standard deviation
σ_sm of its scores, LLN on σ̃² = α²σ_q² + β²σ_k². `calibrate` measures what each does to random
inputs and finds the σ̃ for every σ_sm, by three criteria:

- `linear`: the paper's fit σ_sm² = a σ̃² + b of the variance of log P (Eq. 34), over 1 ≤ σ̃ ≤ 4.
  (The appendix says σ̃² in [1, 4]; a fit there gives a = 0.06, b = −0.06 at D = 64, while σ̃ in
  [1, 4] gives the constants that the authors use.)
- `variance`: the variance of log P itself, over the whole range.
- `entropy`: the mean entropy of the rows of P.

At the same σ̃, LLN's entropy differs from one draw of the keys to the next: a row of P mixes the d
columns of B, and how sharp those are depends on the largest keys. So the entropy of the columns
that rows read, Σ_c w_c H(B_c) with w the mean row of A, is kept too; it costs O(N d) to measure,
and `lln.matching.columns` uses it to correct σ̃ for the keys at hand.

The maps depend on the head dimension and weakly on the number of keys. Those of common head
dimensions ship in `calibration.json`, made by `lln calibrate`; others are measured on first use.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.files import write

SHIPPED = Path(__file__).with_name("calibration.json")
HEAD_DIMS = (8, 16, 32, 64, 80, 96, 128, 256)
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
FIT_RANGE = (1.0, 4.0)  # of σ̃, see above
FIRST_USE_DRAWS = 8  # a compromise: head dimensions that do not ship are measured while you wait

# Both grids are geometric with four points per doubling, so that a place in them is a logarithm.
STEPS_PER_DOUBLING = 4
SCORE_STD_MIN, SCORE_STD_POINTS = 2.0**-3, 29  # 1/8 … 16
SIGMA_MIN, SIGMA_POINTS = 2.0**-2, 33  # 1/4 … 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """σ̃ for each σ_sm of the grid, and the paper's linear fit, at one D and several N.

    Attributes:
        head_dim: D.
        lengths: the numbers of keys N, ascending; one row of each field below per N.
        variance: σ̃ that matches the variance of log P.
        entropy: σ̃ that matches the entropy.
        columns: entropy C of the columns that rows read, at that σ̃, as log((log2 N − C) / C).
        linear: a and b of σ_sm² = a σ̃² + b.
    """

    head_dim: int
    lengths: tuple[int, ...]
    variance: tuple[tuple[float, ...], ...]
    entropy: tuple[tuple[float, ...], ...]
    columns: tuple[tuple[float, ...], ...]
    linear: tuple[tuple[float, float], ...]


def grid(minimum: float, points: int) -> Tensor:
    """The geometric grid that starts at `minimum`."""
    exponent = torch.arange(points, dtype=torch.float64) / STEPS_PER_DOUBLING
    return minimum * 2**exponent


def calibrate(
    d: int,
    n: int | Iterable[int] = LENGTHS,
    *,
    draws: int = 64,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> Calibration:
    """Measures both attentions on Gaussian inputs and matches them.

    Args:
        d: the head dimension.
        n: numbers of keys, one or several.
        draws: how many sets of 1024 or more keys are drawn (more of shorter ones). LLN's entropy
            differs from draw to draw, by up to 0.25 bit, and its mean is what counts.
        seed: of the Gaussian inputs.
        advance: called after each length, for a progress bar.
    """
    lengths = (n,) if isinstance(n, int) else tuple(sorted(n))
    variance, entropy, columns, linear = [], [], [], []
    for length in lengths:
        scores, sigmas = grid(SCORE_STD_MIN, SCORE_STD_POINTS), grid(SIGMA_MIN, SIGMA_POINTS)
        softmax, lln = _measure(d, length, scores, sigmas, draws, seed)
        variance.append(_round(_match(softmax[:, 0].log(), lln[:, 0].log(), sigmas)))
        matched = _match(_spread(softmax[:, 1], length), _spread(lln[:, 1], length), sigmas)
        entropy.append(_round(matched))
        columns.append(
            _round(_interpolate(matched.log(), sigmas.log(), _spread(lln[:, 2], length)))
        )
        fitted = (sigmas >= FIT_RANGE[0]) & (sigmas <= FIT_RANGE[1])
        linear.append(_fit_line(sigmas[fitted] ** 2, lln[fitted, 0]))
        advance()
    return Calibration(d, lengths, tuple(variance), tuple(entropy), tuple(columns), tuple(linear))


def _measure(
    d: int, n: int, scores: Tensor, sigmas: Tensor, draws: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Variance of log P and entropy in bits, `(points, 2)`, for softmax and for LLN.

    LLN has a third column, the entropy of the columns that rows read.
    """
    rows = min(n, max(16, 2**16 // n), 128)
    draws = draws * min(64, max(1, 1024 // n))
    batch = max(1, min(draws, 2**17 // (rows * n)))
    batches = -(-draws // batch)
    generator = torch.Generator().manual_seed(seed)
    softmax = torch.zeros(len(scores), 2, dtype=torch.float64)
    lln = torch.zeros(len(sigmas), 3, dtype=torch.float64)
    for _ in range(batches):
        q = torch.randn(batch, rows, d, generator=generator, dtype=torch.float64)
        k = torch.randn(batch, n, d, generator=generator, dtype=torch.float64)
        score = q @ k.mT / math.sqrt(d)
        for i, std in enumerate(scores):
            log_p = (std * score).log_softmax(-1)
            softmax[i] += _moments(log_p.exp(), log_p)
        for i, sigma in enumerate(sigmas / math.sqrt(2)):
            log_k = sigma * k
            z = log_k.logsumexp(-2, keepdim=True)
            a, b = (sigma * q + z).softmax(-1), (log_k - z).exp()
            p = a @ b.mT
            lln[i, :2] += _moments(p, p.log())
            column = z.squeeze(-2) - (b * log_k).sum(-2)  # entropy of each column, in nats
            lln[i, 2] += (a.mean(-2) * column).sum(-1).mean() / math.log(2)
    return softmax / batches, lln / batches


def _moments(p: Tensor, log_p: Tensor) -> Tensor:
    """Variance and entropy of each draw `(batch, rows, n)`, averaged."""
    variance = log_p.square().mean((-2, -1)) - log_p.mean((-2, -1)).square()
    entropy = -(p * log_p.clamp(min=-700)).sum(-1).mean() / math.log(2)
    return torch.stack([variance.mean(), entropy])


def _spread(bits: Tensor, n: int) -> Tensor:
    """Entropies saturate at both ends, at log2 N and at 0; this is almost linear in log σ."""
    return ((math.log2(n) - bits) / bits).log()


def _match(target: Tensor, achieved: Tensor, sigmas: Tensor) -> Tensor:
    """Where the rising curve `achieved` over `sigmas` reaches each value of `target`."""
    achieved = achieved.nan_to_num(posinf=1e9).cummax(0).values  # noise at saturation
    return _interpolate(target, achieved, sigmas.log()).exp()


def _interpolate(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The piecewise linear curve through (x, y), x rising, at the places `at`."""
    right = torch.searchsorted(x, at).clamp(1, len(x) - 1)
    share = (at - x[right - 1]) / (x[right] - x[right - 1])
    return torch.lerp(y[right - 1], y[right], share.clamp(0, 1))


def _round(x: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in x.tolist())


def _fit_line(x: Tensor, y: Tensor) -> tuple[float, float]:
    slope, intercept = torch.linalg.lstsq(torch.stack([x, torch.ones_like(x)], 1), y).solution
    return round(slope.item(), 5), round(intercept.item(), 5)


def save(calibrations: Iterable[Calibration], path: Path) -> None:
    """Writes `path` whole or not at all."""
    content = {str(c.head_dim): asdict(c) for c in calibrations}
    rows = ",\n".join(f"{json.dumps(d)}: {json.dumps(c)}" for d, c in content.items())
    write(path, lambda file: file.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8"))


def load(path: Path) -> dict[int, Calibration]:
    """Reads what `save` wrote."""
    content = json.loads(path.read_text())
    return {int(d): Calibration(**_tuples(c)) for d, c in content.items()}


def _tuples(x: Any) -> Any:
    """JSON knows lists only."""
    if isinstance(x, dict):
        return {key: _tuples(value) for key, value in x.items()}
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


@cache
def calibration_for(d: int) -> Calibration:
    """The calibration for head dimension `d`: shipped, cached on disk, or measured now."""
    shipped = load(SHIPPED)
    if d in shipped:
        return shipped[d]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "lln" / f"calibration-{d}.json"
    try:
        return load(path)[d]
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("ignoring the calibration in %s: %s", path, error)
    logger.warning("calibrating LLN for head dimension %d, once (about half a minute)", d)
    result = calibrate(d, LENGTHS, draws=FIRST_USE_DRAWS)
    try:
        save([result], path)
    except OSError as error:  # a read-only home is no reason to fail
        logger.warning("could not keep the calibration in %s: %s", path, error)
    return result
