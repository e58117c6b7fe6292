"""`lln bench op`: the cost of attention, between the bare products below it and SDPA above."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lln
from lln.bench import cases, contract, decode, record
from lln.bench.alone import Cell, Peak, peak_memory
from lln.bench.cases import CAUSAL
from lln.bench.growth import crossover, slope
from lln.bench.peers import installed
from lln.bench.references import REFERENCES
from lln.bench.timing import Timing, interleave, rounds, threads
from lln.files import write, write_json
from lln.registry import entry

DTYPES = ("float32", "float64", "bfloat16", "float16")
WHOLE = {"forward": False, "forward+backward": True}  # passes over a whole sequence
DECODING = "decoding"
PASSES = (*WHOLE, DECODING)
LIMIT, PEER = "products", "sdpa"
LENGTHS = (512, 1024, 2048, 4096)
FAMILY = ("block_diag", "lln", "lln_diag")
GROUPS = {
    "default": (*REFERENCES, *installed(), *FAMILY),
    "all": ("naive", *lln.available()),
    "linear": tuple(name for name in lln.available() if entry(name).complexity != "O(N²)"),
    "peers": tuple(installed()),
}


@dataclass(frozen=True)
class Setting:
    """The sizes that a run compares at.

    Attributes:
        names: of `lln.bench.cases.names()`. The bare products and SDPA, to which everything is
            compared, are always measured.
        n: sequence lengths; in decoding, of the text before the token.
        passes: some of `PASSES`.
        causal: measure the causal forms beside the others, where there are any.
        repeats: rounds, see `interleave`.
        memory: measure the peak of the forward and backward pass too, each in its own process.
            What then runs out of memory or time is not timed.
        gate: time only what keeps the contract.
    """

    names: Sequence[str] = GROUPS["default"]
    n: Sequence[int] = (8192,)
    passes: Sequence[str] = PASSES
    causal: bool = False
    batch: int = 1
    heads: int = 12
    head_dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2
    repeats: int = 5
    memory: bool = True
    gate: bool = True

    @property
    def chosen(self) -> list[str]:
        """The named cases and those to compare with, in the order of `cases.names()`."""
        return [name for name in cases.names() if name in (LIMIT, PEER, *self.names)]

    @property
    def whole(self) -> list[str]:
        """Of `WHOLE`, the passes to measure."""
        return [title for title in WHOLE if title in self.passes]

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        names = self.forms(self.chosen)
        timed = rounds(len(names), self.repeats) * len(self.whole)
        whole = (timed + bool(self.whole) * self.memory * len(names)) * len(self.n)
        decoding = decode.steps(self.chosen, self.n, self.repeats) if self.decodes else 0
        return self.gate * len(self.chosen) + whole + decoding

    @property
    def decodes(self) -> bool:
        """Whether decoding is measured."""
        return DECODING in self.passes

    def forms(self, names: Sequence[str]) -> list[str]:
        """The cases of these names, the causal ones too if asked for."""
        causal = (name + CAUSAL for name in names if self.causal and cases.has_causal_form(name))
        return [*names, *causal]


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `op.json` holds."""
    load, red = record.load(), {}
    with threads(setting.threads):
        if setting.gate:
            red = contract.gate(setting.chosen, device=setting.device, advance=advance)
        green = [name for name in setting.chosen if name not in red]
        names, results = setting.forms(green), []
        if setting.whole:
            for n in setting.n:
                results += _run(setting, names, n, advance)
        decoding = _decode(setting, green, advance) if setting.decodes else []
    return {
        "benchmark": "op",
        **record.environment(setting.device),
        "load_before": load,
        "setting": asdict(setting),
        "red": red,
        "results": results,
        "exponents": {name: _exponents(setting, name, results) for name in names},
        "decoding": decoding,
        "crossovers": {name: _crossovers(setting, name, [*results, *decoding]) for name in names},
    }


def _run(
    setting: Setting, names: Sequence[str], n: int, advance: Callable[[], object]
) -> list[dict[str, Any]]:
    x = _inputs(setting, n)
    peaks = {name: _peak(setting, name, n, advance) for name in names} if setting.memory else {}
    problems = {name: peak.problem for name, peak in peaks.items() if peak.problem}
    timings: dict[str, dict[str, Timing]] = {}
    for title in setting.whole:
        calls = {}
        for name in names:
            try:
                if name not in problems:
                    calls[name] = cases.call(cases.find(name), x, backward=WHOLE[title])
            except (ImportError, ValueError) as error:  # it cannot be made, or not for this
                problems[name] = str(error)
        timings[title] = interleave(
            calls, repeats=setting.repeats, device=setting.device, advance=advance
        )
        for _ in range(rounds(len(names) - len(calls), setting.repeats)):
            advance()
    rows = []
    for name in names:
        row: dict[str, Any] = {"n": n, "case": name, "problem": problems.get(name)}
        if name not in problems:
            row |= {title: _compare(timings[title], name) for title in timings}
            saved = saved_bytes(cases.call(cases.find(name), x, backward=True))
            row["saved_bytes_per_token"] = saved / (setting.batch * n)
        if name in peaks:
            row["peak"] = asdict(peaks[name])
        rows.append(row)
    return rows


def _inputs(setting: Setting, n: int) -> cases.Inputs:
    dtype = getattr(torch, setting.dtype)
    sizes = (setting.batch, setting.heads, n, setting.head_dim)
    return cases.inputs(*sizes, dtype=dtype, device=setting.device)


def _peak(setting: Setting, name: str, n: int, advance: Callable[[], object]) -> Peak:
    same = ("batch", "heads", "head_dim", "dtype", "device", "threads")
    cell = Cell(name, n, backward=True, **{key: getattr(setting, key) for key in same})
    peak = peak_memory(cell)
    advance()
    return peak


def _compare(timings: dict[str, Timing], name: str) -> dict[str, Any]:
    own, base = timings[name].median, name.removesuffix(CAUSAL)
    causal = base != name
    peer = timings.get(PEER + CAUSAL if causal else PEER)
    found = {
        **asdict(timings[name]),
        "times_products": own / timings[LIMIT].median if LIMIT in timings else None,
        "faster_than_sdpa": peer.median / own if peer else None,
    }
    if causal:
        found["times_bidirectional"] = own / timings[base].median if base in timings else None
    return found


def _decode(
    setting: Setting, names: Sequence[str], advance: Callable[[], object]
) -> list[dict[str, Any]]:
    x = _inputs(setting, max(*setting.n, decode.AT_ONCE))
    found = decode.measure(names, setting.n, x, repeats=setting.repeats, advance=advance)
    by_length: dict[int, dict[str, Timing]] = {n: {} for n in setting.n}
    for decoder, timing in found:
        by_length[decoder.n][decoder.name] = timing
    return [
        {
            "n": decoder.n,
            "case": decoder.name,
            DECODING: _compare(by_length[decoder.n], decoder.name),
            "times_shortest": timing.median / by_length[min(setting.n)][decoder.name].median,
            "bytes": decoder.bytes,
        }
        for decoder, timing in found
    ]


def _exponents(
    setting: Setting, name: str, results: list[dict[str, Any]]
) -> dict[str, float | None]:
    """How time and memory grow with N: the slopes of their logarithms.

    Of times the minima: lengths are measured one after the other, so nothing makes a disturbance
    hit them alike.
    """
    rows = [row for row in results if row["case"] == name]
    found = {
        title: slope([(row["n"], row[title]["minimum"]) for row in rows if title in row])
        for title in setting.whole
    }
    peaks = [(row["n"], row.get("peak", {}).get("bytes")) for row in rows]
    return found | {"memory": slope([(n, peak) for n, peak in peaks if peak])}


def _crossovers(setting: Setting, name: str, rows: list[dict[str, Any]]) -> dict[str, str | None]:
    """From which length on a case is faster than SDPA, by pass."""
    found: dict[str, str | None] = dict.fromkeys(setting.passes)
    for title in setting.passes if name.removesuffix(CAUSAL) != PEER else ():
        own = {row["n"]: row[title] for row in rows if row["case"] == name and title in row}
        faster = {n: timing["faster_than_sdpa"] for n, timing in own.items()}
        found[title] = crossover({n: 1 / ratio for n, ratio in faster.items() if ratio})
    return found


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
    """Writes `op.json`, `op.md` and, of passes over whole sequences, `op.png` into `folder`."""
    from lln.bench.op_figure import draw
    from lln.bench.op_tables import markdown

    write_json(folder / "op.json", report)
    write(folder / "op.md", lambda file: file.write_text(markdown(report), encoding="utf-8"))
    if report["results"]:
        write(folder / "op.png", partial(draw, report))
