"""`lln figure`: the figures of the paper's theory, measured anew on Gaussian inputs.

What a figure shows is in its `results`, what that says of the paper's claims in its `summary`. The
paper names neither N nor d; here d = 64 as in its models, and N is in the settings below.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lln.bench import theory_attention, theory_sums
from lln.bench.record import environment
from lln.bench.theory_attention import Inputs
from lln.bench.theory_sums import Sums
from lln.files import write, write_json


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        title: what it shows.
        setting: what it is measured on.
        measure: `measure(setting, advance)` gives its `results` and `summary`, and calls `advance`
            `setting.steps` times.
    """

    title: str
    setting: Inputs | Sums
    measure: Callable[..., dict[str, Any]]


FIGURES = {
    "2": Figure(
        "Concentration against temperature",
        # Temperatures 1/σ² from 2 down to 0.2; q and k have the same variance.
        Inputs((0.5, 0.625, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0), n=512, draws=16),
        theory_attention.concentration,
    ),
    "5a": Figure(
        "log P of softmax attention against Proposition 3.1",
        Inputs((0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)),
        theory_attention.log_moments,
    ),
    "5b": Figure(
        "Variance of log P before and after moment matching",
        Inputs((0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0), head_dims=(16, 32, 64, 128)),
        theory_attention.matched_variance,
    ),
    "6a": Figure(
        "Sums of log-normal variables, moderate variance",
        Sums((0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)),
        theory_sums.moderate,
    ),
    "6b": Figure(
        "Sums of log-normal variables, broad variance",
        Sums((1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)),
        theory_sums.broad,
    ),
    "7": Figure(
        "Distribution of log P before and after moment matching",
        Inputs((1.0,)),
        theory_attention.distribution,
    ),
}


def run(
    name: str,
    setting: Inputs | Sums | None = None,
    *,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Measures figure `name`, at its own setting or another, and returns what its JSON holds."""
    figure = FIGURES[name]
    setting = replace(setting or figure.setting, seed=seed)
    return {
        "figure": name,
        "title": figure.title,
        **environment(),
        "setting": asdict(setting),
        **figure.measure(setting, advance),
    }


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `figure-<name>.json`, `.png` and `.svg` into `folder`."""
    from lln.bench.theory_figure import draw

    stem = f"figure-{report['figure']}"
    write_json(folder / f"{stem}.json", report)
    for suffix in ("png", "svg"):
        write(folder / f"{stem}.{suffix}", partial(draw, report))
