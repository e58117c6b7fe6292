"""`lln bench op`: the cost of attention, between the bare products below it and SDPA above."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lln.bench import cases, record
from lln.bench.timing import Timing, interleave, rounds, threads

if TYPE_CHECKING:
    from rich.table import Table

DTYPES = ("float32", "float64", "bfloat16", "float16")
PASSES = {"forward": False, "forward+backward": True}
LIMIT, PEER = "products", "sdpa"


@dataclass(frozen=True)
class Setting:
    """The sizes that a run compares at.

    Attributes:
        names: cases of `lln.bench.cases.CASES`. The bare products are always measured; SDPA, which
            takes longer than all others together, only if named.
        n: sequence lengths.
        repeats: rounds, see `interleave`.
    """

    names: Sequence[str] = tuple(cases.CASES)
    n: Sequence[int] = (8192,)
    batch: int = 1
    heads: int = 12
    head_dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2
    repeats: int = 5

    @property
    def measured(self) -> list[str]:
        """The named cases and the bare products, in the order of `CASES`."""
        return [name for name in cases.CASES if name in self.names or name == LIMIT]

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        return rounds(len(self.measured), self.repeats) * len(PASSES) * len(self.n)


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `lln bench op --out` writes."""
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
            name: cases.call(cases.CASES[name], x, backward=backward) for name in setting.measured
        }
        timings[title] = interleave(
            calls, repeats=setting.repeats, device=setting.device, advance=advance
        )
    return [
        {
            "n": n,
            "case": name,
            **{title: _compare(timings[title], name) for title in PASSES},
            "saved_bytes_per_token": saved_bytes(cases.CASES[name].attend, x) / (setting.batch * n),
        }
        for name in setting.measured
    ]


def _compare(timings: dict[str, Timing], name: str) -> dict[str, Any]:
    own = timings[name].median
    return {
        **asdict(timings[name]),
        "times_products": own / timings[LIMIT].median,
        "faster_than_sdpa": timings[PEER].median / own if PEER in timings else None,
    }


def saved_bytes(attend: cases.Attend, x: cases.Inputs) -> int:
    """What the forward pass keeps for the backward pass, inputs included, each storage once."""
    kept: dict[int, int] = {}
    alive = []

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(storage)  # a freed address would be given out again
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        attend(x.q, x.k, x.v)
    return sum(kept.values())


def tables(report: dict[str, Any]) -> "list[Table]":
    """The report for a terminal, a table per sequence length and pass."""
    from rich import box
    from rich.table import Table

    setting, result = report["setting"], []
    for n in setting["n"]:
        for title, backward in PASSES.items():
            table = Table(
                box=box.HORIZONTALS,
                padding=(0, 1, 0, 0),
                title=f"{title}: B={setting['batch']}, H={setting['heads']}, N={n}, "
                f"D={setting['head_dim']}, {setting['dtype']}, {setting['device']}, "
                f"threads={setting['threads']}",
            )
            table.add_column("case", style="bold", no_wrap=True)
            table.add_column("")
            for column in ("ms", "times\nproducts", "faster\nthan SDPA", "saved\nB/token")[
                : 3 + backward
            ]:
                table.add_column(column, justify="right")
            for row in report["results"]:
                if row["n"] == n:
                    label = cases.CASES[row["case"]].label
                    saved = [f"{row['saved_bytes_per_token']:,.0f}"] if backward else []
                    table.add_row(row["case"], label, *_cells(row[title]), *saved)
            result.append(table)
    return result


def _cells(timing: dict[str, Any]) -> list[str]:
    milliseconds, faster = 1e3 * timing["median"], timing["faster_than_sdpa"]
    return [
        f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}",
        f"{timing['times_products']:.2f}",
        "–" if faster is None else f"{faster:.2f}×" if faster < 10 else f"{faster:.0f}×",
    ]
