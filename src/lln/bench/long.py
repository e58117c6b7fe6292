"""`lln bench long`: forward and backward of sequences that barely fit, in bounded memory."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lln.bench import cases, contract, record
from lln.bench.alone import WARM_UP, peak_memory, time_in_turns
from lln.bench.grid import Grid, document
from lln.bench.growth import slope
from lln.files import write, write_json


@dataclass(frozen=True)
class LongCell:
    """Forward and backward of all heads, some at a time.

    Heads are independent, so those that wait take no memory beyond q, k, v and their gradients.

    Attributes:
        name: of a case.
        heads_at_once: whose intermediate results are in memory together; divides `heads`.
    """

    name: str
    n: int
    heads: int = 8
    head_dim: int = 64
    heads_at_once: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2

    def prepare(self, *, small: bool = False) -> Callable[[], object]:
        """q, k and v of each group of heads, and the call."""
        n = min(self.n, WARM_UP) if small else self.n
        dtype = getattr(torch, self.dtype)
        attend = cases.find(self.name).make(self.heads_at_once, self.head_dim, n)
        if isinstance(attend, torch.nn.Module):
            attend.to(self.device, dtype)
        groups = [self._group(n, dtype, seed) for seed in range(self.heads // self.heads_at_once)]

        def call() -> list[Tensor | None]:
            for q, k, v in groups:
                out = attend(q, k, v)
                out.backward(out.detach())  # the gradient of |out|² / 2, which takes no memory
            return [x.grad for group in groups for x in group]

        return call

    def _group(self, n: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shape = (1, self.heads_at_once, n, self.head_dim)
        drawn = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3))
        return [x.to(self.device).requires_grad_() for x in drawn]


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        names: of cases.
        n: sequence lengths.
        heads_at_once: see `LongCell`.
        timeout: seconds for one measurement.
        gate: measure only what keeps the contract.
    """

    names: Sequence[str] = ("lln_diag",)
    n: Sequence[int] = (65_536, 262_144, 1_048_576)
    heads: int = 8
    head_dim: int = 64
    heads_at_once: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2
    timeout: float = 1800
    gate: bool = True

    def __post_init__(self) -> None:
        if self.heads % self.heads_at_once:
            raise ValueError(
                f"heads_at_once must divide heads={self.heads}, got {self.heads_at_once}"
            )

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        return self.gate * len(self.names) + len(self.names) * len(self.n)


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `long.json` holds."""
    load, red, results = record.load(), {}, []
    if setting.gate:
        red = contract.gate(setting.names, device=setting.device, advance=advance)
    names = [name for name in setting.names if name not in red]
    for name in names:
        for n in setting.n:
            results.append(_measure(setting, name, n))
            advance()
    return {
        "benchmark": "long",
        **record.environment(setting.device),
        "load_before": load,
        "setting": asdict(setting),
        "red": red,
        "results": results,
        "exponents": {
            name: {key: _slope(results, name, key) for key in ("seconds", "bytes")}
            for name in names
        },
    }


def _measure(setting: Setting, name: str, n: int) -> dict[str, Any]:
    same = ("heads", "head_dim", "heads_at_once", "dtype", "device", "threads")
    cell = LongCell(name, n, **{key: getattr(setting, key) for key in same})
    peak = peak_memory(cell, timeout=setting.timeout)
    row: dict[str, Any] = {"case": name, "n": n, "bytes": peak.total, "problem": peak.problem}
    if peak.problem is None:  # what does not fit is not timed
        # One call counts: such a long one has no need of others.
        spent = time_in_turns({name: cell}, repeats=1, budget=0, timeout=setting.timeout)[name]
        row |= {"seconds": spent.seconds, "problem": spent.problem}
    return row


def _slope(results: list[dict[str, Any]], name: str, key: str) -> float | None:
    return slope([(r["n"], r[key]) for r in results if r["case"] == name and r.get(key)])


def tables(report: dict[str, Any]) -> list[Grid]:
    """Time and peak memory by length."""
    setting = report["setting"]
    rows = []
    for row in report["results"]:
        seconds, size = row.get("seconds"), row["bytes"]
        rows.append(
            [
                row["case"],
                f"{row['n']:,}",
                row["problem"] or ("–" if seconds is None else f"{seconds:,.1f}"),
                "–" if seconds is None else f"{1e6 * seconds / row['n']:,.2f}",
                "–" if size is None else f"{size / 1e9:,.2f}",
                "–" if size is None else f"{size / row['n']:,.0f}",
            ]
        )
    title = (
        f"forward+backward: B=1, H={setting['heads']}, {setting['heads_at_once']} at a time, "
        f"D={setting['head_dim']}, {setting['dtype']}, {setting['device']}, "
        f"threads={setting['threads']}"
    )
    columns = ["case", "N", "s", "µs\nper token", "peak GB\nwith q, k, v", "bytes\nper token"]
    found = [Grid(title, columns, rows)]
    if report["red"]:
        red = [[name, reason] for name, reason in report["red"].items()]
        found.append(Grid("red: not timed", ["case", "broken clause"], red, named=2))
    return found


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `long.json` and `long.md` into `folder`."""
    write_json(folder / "long.json", report)
    text = document("lln bench long", record.origin(report), tables(report))
    write(folder / "long.md", lambda file: file.write_text(text, encoding="utf-8"))
