"""`lln bench overview`: LLN against softmax attention in speed, memory and concentration."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import lln
from lln.bench import cases, contract, record
from lln.bench.alone import Cell, Peak, peak_memory
from lln.bench.timing import interleave, rounds, threads
from lln.files import write, write_json
from lln.instruments import entropy, matrix_of, spectral_gap

if TYPE_CHECKING:
    from rich.table import Table

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
# LLN finds α and β itself, so that its time is what a user's model would see.
COMPARED = {"sdpa": "softmax (SDPA)", "lln": "LLN", "lln_diag": "LLN+Diag"}
SHORT = {"sdpa": "SDPA", "lln": "LLN", "lln_diag": "+Diag"}  # fits 80 columns
PEER = "sdpa"
MEASURES = 2  # of each length: softmax, then LLN
GAP_TOLERANCE = 4e-3  # for two digits: each product with softmax's P costs as much as attention


@dataclass(frozen=True)
class Setting:
    """What is compared.

    Attributes:
        n: sequence lengths.
        heads: of the timed attentions.
        sigma: standard deviation of the Gaussian q and k.
        repeats: rounds of timing, see `interleave`.
        rows: of P, whose entropy is measured.
        tokens: concentration is averaged over draws of q and k that have so many tokens together.
    """

    n: Sequence[int] = LENGTHS
    heads: int = 8
    head_dim: int = 64
    sigma: float = 1.2
    threads: int = 2
    repeats: int = 3
    rows: int = 128
    tokens: int = 16384

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        per_length = rounds(len(COMPARED), self.repeats) + len(COMPARED) + MEASURES
        return per_length * len(self.n)


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `overview.json` holds."""
    if red := contract.gate(COMPARED):
        raise RuntimeError(f"not timed, as the contract is broken: {red}")
    results, load = [], record.load()
    with threads(setting.threads):
        for n in setting.n:
            timings = _time(setting, n, advance)
            peaks = {}
            for name in COMPARED:
                peaks[name] = _peak(setting, name, n)
                advance()
            results.append(
                {
                    "n": n,
                    "seconds": timings,
                    "speed_up": {name: timings[PEER] / s for name, s in timings.items()},
                    "peak": {name: asdict(peak) for name, peak in peaks.items()},
                    **_concentration(setting, n, advance),
                }
            )
    return {
        "benchmark": "overview",
        **record.environment(),
        "load_before": load,
        "setting": asdict(setting),
        "results": results,
    }


def _time(setting: Setting, n: int, advance: Callable[[], object]) -> dict[str, float]:
    x = cases.inputs(1, setting.heads, n, setting.head_dim, std=setting.sigma)
    calls = {name: cases.call(cases.find(name), x, backward=False) for name in COMPARED}
    timings = interleave(calls, repeats=setting.repeats, advance=advance)
    return {name: timing.median for name, timing in timings.items()}


def _peak(setting: Setting, name: str, n: int) -> Peak:
    return peak_memory(
        Cell(name, n, heads=setting.heads, head_dim=setting.head_dim, threads=setting.threads)
    )


@torch.no_grad()
def _concentration(setting: Setting, n: int, advance: Callable[[], object]) -> dict[str, Any]:
    """Entropy in bits and spectral gap of both attentions on the same q and k."""
    # Short sequences differ more from draw to draw and cost less; eight draws are enough of them.
    draws = max(1, min(8, setting.tokens // n))
    q, k, _, _ = cases.inputs(draws, 1, n, setting.head_dim, std=setting.sigma)
    bits, gap = {}, {}
    for name in ("softmax", "lln"):
        core = lln.build_core(name, heads=1, head_dim=setting.head_dim)
        matrix = matrix_of(core, q, k)
        bits[name] = entropy(matrix, rows=setting.rows).bits.mean().item()
        found = spectral_gap(matrix, tolerance=GAP_TOLERANCE, singular=False)
        gap[name] = found.gap.mean().item()
        advance()
    return {"entropy_bits": bits, "spectral_gap": gap}


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `overview.json` and `overview.png` into `folder`."""
    from lln.bench.figure import draw

    write_json(folder / "overview.json", report)
    write(folder / "overview.png", partial(draw, report))


def tables(report: dict[str, Any]) -> "list[Table]":
    """The report for a terminal: cost, then concentration."""
    from rich.table import Table

    setting = report["setting"]
    cost = Table(
        title=f"Forward pass: B=1, H={setting['heads']}, D={setting['head_dim']}, float32, "
        f"{setting['threads']} CPU threads"
    )
    cost.add_column("N", justify="right")
    for label in SHORT.values():
        cost.add_column(f"{label}\nms", justify="right")
    for name, label in SHORT.items():
        if name != PEER:
            cost.add_column(f"{label}\nspeed-up", justify="right", style="bold")
    for label in SHORT.values():
        cost.add_column(f"{label}\nMiB", justify="right")
    concentration = Table(
        title=f"Concentration: Gaussian q and k, σ={setting['sigma']}, D={setting['head_dim']}"
    )
    concentration.add_column("N", justify="right")
    for title in ("entropy, bits", "spectral gap"):
        for label in ("softmax", "LLN"):
            concentration.add_column(f"{label}\n{title}", justify="right")
    for row in report["results"]:
        cost.add_row(
            f"{row['n']:,}",
            *(_milliseconds(row["seconds"][name]) for name in COMPARED),
            *(f"{row['speed_up'][name]:.1f}×" for name in COMPARED if name != PEER),
            *(_mebibytes(row["peak"][name]) for name in COMPARED),
        )
        concentration.add_row(
            f"{row['n']:,}",
            *(f"{row['entropy_bits'][name]:.2f}" for name in ("softmax", "lln")),
            *(f"{row['spectral_gap'][name]:.2f}" for name in ("softmax", "lln")),
        )
    return [cost, concentration]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds > 0.1 else f"{1e3 * seconds:.1f}"


def _mebibytes(peak: dict[str, Any]) -> str:
    if peak["bytes"] is None:
        return str(peak["problem"] or "–")
    return f"{peak['bytes'] / 2**20:,.1f}"
