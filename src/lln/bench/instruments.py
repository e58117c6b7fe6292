"""`lln bench instruments`: what it costs to measure the attention of a long sequence."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

import lln
from lln.bench import cases, record
from lln.bench.alone import Cell, peak_memory
from lln.bench.references import Attend
from lln.bench.timing import interleave, rounds, threads
from lln.files import write_json
from lln.instruments import entropy, matrix_of, spectral_gap, temperature

if TYPE_CHECKING:
    from rich.table import Table

ROWS = 256  # of P, in measures that sample
REFERENCE = "products"


def _measuring(name: str, measure: Callable[..., object]) -> Callable[[int, int, int], Attend]:
    """A case's `make` for `measure(core, q, k)`."""

    def make(heads: int, head_dim: int, n: int) -> Attend:
        core = lln.build_core(name, heads=heads, head_dim=head_dim)

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            measure(core, q, k)
            return v

        return run

    return make


CASES = {
    f"{name} {title}": cases.Case(f"{title} of {name}", _measuring(name, measure))
    for name, title, measure in (
        ("lln", "gap", lambda core, q, k: spectral_gap(matrix_of(core, q, k))),
        ("lln", "temperature", lambda core, q, k: temperature(core, q, k, rows=ROWS)),
        ("lln", "entropy", lambda core, q, k: entropy(matrix_of(core, q, k), rows=ROWS)),
        ("softmax", "temperature", lambda core, q, k: temperature(core, q, k)),
        ("softmax", "entropy", lambda core, q, k: entropy(matrix_of(core, q, k), rows=ROWS)),
    )
}


@dataclass(frozen=True)
class Setting:
    """What is measured: one sequence, one head.

    Attributes:
        n: its length.
        repeats: rounds of timing, see `interleave`.
    """

    n: int = 65536
    head_dim: int = 64
    threads: int = 2
    repeats: int = 3

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        return rounds(1 + len(CASES), self.repeats) + len(CASES)


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `instruments.json` holds."""
    load = record.load()
    x = cases.inputs(1, 1, setting.n, setting.head_dim)
    measured = {REFERENCE: cases.find(REFERENCE), **CASES}
    with threads(setting.threads):
        calls = {name: cases.call(case, x, backward=False) for name, case in measured.items()}
        timings = interleave(calls, repeats=setting.repeats, advance=advance)
    results = []
    for name in CASES:
        peak = peak_memory(
            Cell(name, setting.n, heads=1, head_dim=setting.head_dim, threads=setting.threads)
        )
        seconds = timings[name].median
        results.append(
            {
                "case": name,
                "seconds": seconds,
                "times_products": seconds / timings[REFERENCE].median,
                "peak": asdict(peak),
            }
        )
        advance()
    return {
        "benchmark": "instruments",
        **record.environment(),
        "load_before": load,
        "setting": {**asdict(setting), "rows": ROWS},
        "results": results,
    }


def table(report: dict[str, Any]) -> "Table":
    """The report for a terminal."""
    from rich.table import Table

    setting = report["setting"]
    result = Table(
        title=f"Measuring: B=1, H=1, N={setting['n']:,}, D={setting['head_dim']}, float32, "
        f"{setting['rows']} sampled rows, {setting['threads']} CPU threads"
    )
    for title in ("measure", "s", "× products", "MB beyond q, k"):
        result.add_column(title, justify="left" if title == "measure" else "right")
    for row in report["results"]:
        peak = row["peak"]
        memory = peak["problem"] or "–" if peak["bytes"] is None else f"{peak['bytes'] / 1e6:,.0f}"
        result.add_row(row["case"], f"{row['seconds']:.2f}", f"{row['times_products']:.1f}", memory)
    return result


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `instruments.json` into `folder`."""
    write_json(folder / "instruments.json", report)
