"""`lln bench op`: the cost of attention, between the bare products below it and SDPA above."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import lln
from lln.bench import cases, record
from lln.bench.timing import Cell, Timing, interleave, peak_memory, rounds, threads
from lln.files import write, write_json
from lln.registry import entry

if TYPE_CHECKING:
    from rich.table import Table

DTYPES = ("float32", "float64", "bfloat16", "float16")
PASSES = {"forward": False, "forward+backward": True}
LIMIT, PEER = "products", "sdpa"
LENGTHS = (512, 1024, 2048, 4096)
FAMILY = ("block_diag", "lln", "lln_diag")
GROUPS = {
    "default": (*cases.REFERENCES, *FAMILY),
    "all": (LIMIT, PEER, *lln.available()),
    "linear": tuple(name for name in lln.available() if entry(name).complexity != "O(N²)"),
}


@dataclass(frozen=True)
class Setting:
    """The sizes that a run compares at.

    Attributes:
        names: of `lln.bench.cases.names()`. The bare products are always measured; SDPA, which
            takes longer than most others together, only if named.
        n: sequence lengths.
        repeats: rounds, see `interleave`.
        memory: measure the peak of the forward and backward pass too, each in its own process.
    """

    names: Sequence[str] = GROUPS["default"]
    n: Sequence[int] = (8192,)
    batch: int = 1
    heads: int = 12
    head_dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2
    repeats: int = 5
    memory: bool = True

    @property
    def measured(self) -> list[str]:
        """The named cases and the bare products, in the order of `cases.names()`."""
        return [name for name in cases.names() if name in self.names or name == LIMIT]

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        timed = rounds(len(self.measured), self.repeats) * len(PASSES)
        return (timed + self.memory * len(self.measured)) * len(self.n)


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `op.json` holds."""
    cases.verify(setting.measured)
    results, load = [], record.load()
    with threads(setting.threads):
        for n in setting.n:
            results += _run(setting, n, advance)
    return {
        "benchmark": "op",
        **record.environment(setting.device),
        "load_before": load,
        "setting": asdict(setting),
        "results": results,
        "exponents": {name: _exponents(name, results) for name in setting.measured},
    }


def _run(setting: Setting, n: int, advance: Callable[[], object]) -> list[dict[str, Any]]:
    x = cases.inputs(
        setting.batch,
        setting.heads,
        n,
        setting.head_dim,
        dtype=getattr(torch, setting.dtype),
        device=setting.device,
    )
    timings = {}
    for title, backward in PASSES.items():
        calls = {
            name: cases.call(cases.find(name), x, backward=backward) for name in setting.measured
        }
        timings[title] = interleave(
            calls, repeats=setting.repeats, device=setting.device, advance=advance
        )
    rows = []
    for name in setting.measured:
        saved = saved_bytes(cases.call(cases.find(name), x, backward=True))
        rows.append(
            {
                "n": n,
                "case": name,
                **{title: _compare(timings[title], name) for title in PASSES},
                "saved_bytes_per_token": saved / (setting.batch * n),
            }
        )
        if setting.memory:
            rows[-1]["peak"] = asdict(peak_memory(_cell(setting, name, n)))
            advance()
    return rows


def _cell(setting: Setting, name: str, n: int) -> Cell:
    same = ("batch", "heads", "head_dim", "dtype", "device", "threads")
    return Cell(name, n, backward=True, **{key: getattr(setting, key) for key in same})


def _compare(timings: dict[str, Timing], name: str) -> dict[str, Any]:
    own = timings[name].median
    return {
        **asdict(timings[name]),
        "times_products": own / timings[LIMIT].median,
        "faster_than_sdpa": timings[PEER].median / own if PEER in timings else None,
    }


def _exponents(name: str, results: list[dict[str, Any]]) -> dict[str, float | None]:
    """How time and memory grow with N: the slopes of their logarithms.

    Of times the minima: lengths are measured one after the other, so nothing makes a disturbance
    hit them alike.
    """
    rows = [row for row in results if row["case"] == name]
    found = {title: slope([(row["n"], row[title]["minimum"]) for row in rows]) for title in PASSES}
    peaks = [(row["n"], row.get("peak", {}).get("bytes")) for row in rows]
    return found | {"memory": slope([(n, peak) for n, peak in peaks if peak])}


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The exponent p of the power law c · xᵖ that fits the points; None for fewer than two."""
    if len(points) < 2:
        return None
    x, y = torch.tensor(points, dtype=torch.float64).log().T
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def saved_bytes(call: Callable[[], object]) -> int:
    """What a call's forward pass keeps for the backward pass, each storage once."""
    kept: dict[int, int] = {}
    alive = []

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(storage)  # a freed address would be given out again
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        call()
    return sum(kept.values())


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `op.json` and `op.png` into `folder`."""
    from lln.bench.op_figure import draw

    write_json(folder / "op.json", report)
    write(folder / "op.png", partial(draw, report))


def tables(report: dict[str, Any]) -> "list[Table]":
    """The report for a terminal: a table per sequence length and pass, and how cost grows."""
    setting, result = report["setting"], []
    for n in setting["n"]:
        for title, backward in PASSES.items():
            titles = ["ms", "times\nproducts", "faster\nthan SDPA"]
            titles += ["saved\nB/token", "peak\nMiB"] if backward else []
            table = _table(
                f"{title}: B={setting['batch']}, H={setting['heads']}, N={n}, "
                f"D={setting['head_dim']}, {setting['dtype']}, {setting['device']}, "
                f"threads={setting['threads']}",
                titles,
            )
            for row in report["results"]:
                if row["n"] == n:
                    memory = [f"{row['saved_bytes_per_token']:,.0f}", _mebibytes(row)]
                    label = cases.find(row["case"]).label
                    cells = [*_cells(row[title]), *(memory if backward else [])]
                    table.add_row(row["case"], label, *cells)
            result.append(table)
    if len(setting["n"]) > 1:
        growth = _table("growth: cost ∝ N to the power of", [*PASSES, "memory"])
        for name, exponents in report["exponents"].items():
            cells = ["–" if p is None else f"{p:.2f}" for p in exponents.values()]
            growth.add_row(name, cases.find(name).label, *cells)
        result.append(growth)
    return result


def _table(title: str, columns: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), title=title)
    table.add_column("case", style="bold", no_wrap=True)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _cells(timing: dict[str, Any]) -> list[str]:
    milliseconds, faster = 1e3 * timing["median"], timing["faster_than_sdpa"]
    return [
        f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}",
        f"{timing['times_products']:.2f}",
        "–" if faster is None else f"{faster:.2f}×" if faster < 10 else f"{faster:.0f}×",
    ]


def _mebibytes(row: dict[str, Any]) -> str:
    peak = row.get("peak", {"bytes": None, "problem": None})
    return str(peak["problem"] or "–") if peak["bytes"] is None else f"{peak['bytes'] / 2**20:,.0f}"
