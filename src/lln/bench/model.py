"""`lln bench model`: a real training step, as in the paper's Tables 2 and 4."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lln.bench import contract, record
from lln.bench.alone import peak_memory, time_in_turns
from lln.bench.growth import slope
from lln.bench.step import Size, StepCell
from lln.files import write, write_json
from lln.registry import parse

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FITTED_FROM = 2048  # below, what does not depend on N still counts
MIXERS = ("softmax", "lln", "lln_diag", "nystromformer")  # those of Table 2
DTYPES = ("float32", "bfloat16", "float16")
FILE = "model.json"
KEPT = 1.5  # times its peak: what a process may keep for itself, its libraries included
CHANGING = ("date", "load_before", "results", "exponents")  # between two runs of the same
SIZES = {
    "base": Size(12, 768, 12, 3072),  # RoBERTa-base
    "small": Size(6, 512, 8, 2048),
    "tiny": Size(2, 128, 2, 512),
}
LRA = Size(2, 64, 2, 128, vocabulary=512)


@dataclass(frozen=True)
class Task:
    """Of the Long Range Arena: sequences of such a length, so many in a batch."""

    short: str
    n: int
    batch: int
    classes: int


# As Skyformer's code has them (pkuzengqi/Skyformer, src/config.py), with which Table 4 was made.
# Retrieval reads two texts per example, with one encoder.
TASKS = {
    "text": Task("TC", 4000, 32, 2),
    "listops": Task("LO", 2000, 32, 10),
    "retrieval": Task("RE", 4000, 2 * 16, 2),
    "pathfinder": Task("PF", 1024, 128, 2),
    "image": Task("IC", 1024, 256, 10),
}


Row = dict[str, Any]  # of the results: a mixer in a column


@dataclass(frozen=True)
class Setting:
    """What is measured: each mixer at each length, or on each task.

    Attributes:
        mixers: names, with options such as `lln_diag+block_size=128`.
        size: of the model.
        columns: the length, batch and number of classes (0 for masked language modelling) of each
            column of the table.
        repeats: steps that are timed, fewer if they take longer than `budget` seconds.
        timeout: seconds for one step.
        gate: measure only what keeps the contract.
    """

    mixers: Sequence[str]
    size: Size
    columns: Mapping[str, Task]
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2
    repeats: int = 5
    budget: float = 60
    timeout: float = 900
    gate: bool = True

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        return len(self.mixers) * (self.gate + 2 * len(self.columns))


def subject(
    model: str, lengths: Sequence[int] | None = None, batch: int | None = None
) -> tuple[Size, dict[str, Task]]:
    """What `--model` asks for: a model, and the lengths or tasks that it trains on.

    Args:
        model: one of `SIZES`, layers x dim x heads such as `4x256x4`, or `lra`.
        lengths: `LENGTHS` by default; the tasks of `lra` have their own.
        batch: sequences per step; 1 by default, for `lra` as published.
    """
    if model == "lra":
        if lengths is not None:
            raise ValueError("the tasks of lra have lengths of their own: leave '--n' out")
        return LRA, {
            name: task if batch is None else replace(task, batch=batch)
            for name, task in TASKS.items()
        }
    return _size(model), {
        str(n): Task(str(n), n, batch or 1, classes=0) for n in lengths or LENGTHS
    }


def _size(model: str) -> Size:
    if model in SIZES:
        return SIZES[model]
    numbers = model.split("x")
    if len(numbers) != 3 or not all(n.isdecimal() and int(n) for n in numbers):
        raise ValueError(
            f"'--model' {model!r} is not one of {', '.join(SIZES)}, lra, nor layers x dim x heads "
            "such as 4x256x4"
        )
    layers, dim, heads = map(int, numbers)
    if dim % heads:
        raise ValueError(f"'--model' {model!r}: dim {dim} is not a multiple of {heads} heads")
    return Size(layers, dim, heads, 4 * dim)


def run(
    setting: Setting,
    *,
    folder: Path | None = None,
    keep: Callable[[dict[str, Any]], object] = lambda report: None,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Measures, and returns what `model.json` holds.

    Args:
        setting: what is measured.
        folder: where a run that was interrupted may have left a part of the same.
        keep: called with what there is whenever cells were timed.
        advance: called after every check and every cell, for a progress bar.
    """
    load, red = record.load(), dict[str, str]()
    for mixer in setting.mixers if setting.gate else ():
        if reason := contract.red(parse(mixer)[0], device=setting.device):
            red[mixer] = reason
        advance()
    mixers = [mixer for mixer in setting.mixers if mixer not in red]
    report = {
        "benchmark": "model",
        **record.environment(setting.device),
        "load_before": load,
        "setting": asdict(setting),
        "red": red,
        "results": [],
        "exponents": dict.fromkeys(mixers),
    }
    known = {(row["mixer"], row["column"]): row for row in _interrupted(folder, report)}
    for column, task in setting.columns.items():
        rows = {}
        for mixer in mixers:
            rows[mixer] = known.get((mixer, column)) or _memory(setting, mixer, column, task)
            advance()
        for group in _groups(setting, rows):
            _time(setting, group, task)
            report["results"] += group.values()
            report["exponents"] = {
                mixer: _exponents(setting, report["results"], mixer) for mixer in mixers
            }
            if any((mixer, column) not in known for mixer in group):  # or less would be kept
                keep(report)
            for _ in group:
                advance()
    return report


def _groups(setting: Setting, rows: dict[str, Row]) -> Iterator[dict[str, Row]]:
    """Cells that take turns: as many at a time as the memory has room for; on a GPU each alone."""
    room = record.free_memory() if setting.device == "cpu" else None
    group: dict[str, Row] = {}
    for mixer, row in rows.items():
        needed = sum(other["bytes"] or 0 for other in [*group.values(), row])
        if group and (room is None or KEPT * needed > room):
            yield group
            group = {}
        group[mixer] = row
    yield group


def _cell(setting: Setting, mixer: str, task: Task) -> StepCell:
    return StepCell(
        mixer,
        task.n,
        task.batch,
        asdict(setting.size),
        task.classes,
        setting.dtype,
        setting.device,
        setting.threads,
    )


def _memory(setting: Setting, mixer: str, column: str, task: Task) -> Row:
    peak = peak_memory(_cell(setting, mixer, task), timeout=setting.timeout)
    row = {"mixer": mixer, "column": column, "n": task.n, "batch": task.batch, "bytes": peak.total}
    # What does not come to its end is not timed.
    return row | {"seconds": None, "problem": peak.problem} if peak.problem else row


def _time(setting: Setting, group: dict[str, Row], task: Task) -> None:
    """Adds times to the rows that have none."""
    cells = {
        mixer: _cell(setting, mixer, task) for mixer, row in group.items() if "seconds" not in row
    }
    found = time_in_turns(
        cells, repeats=setting.repeats, budget=setting.budget, timeout=setting.timeout
    )
    for mixer, spent in found.items():
        group[mixer] |= asdict(spent)


def _interrupted(folder: Path | None, report: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that a run like this one has left in `folder`, if it did not come to its end."""
    file = None if folder is None else folder / FILE
    if file is None or not file.exists():
        return []
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    same = json.loads(json.dumps({key: report[key] for key in report if key not in CHANGING}))
    if not isinstance(before, dict) or any(before.get(key) != same[key] for key in same):
        return []
    cells = len(report["exponents"]) * len(report["setting"]["columns"])
    rows: list[dict[str, Any]] = before["results"]
    return rows if len(rows) < cells else []


def _exponents(setting: Setting, results: list[Row], mixer: str) -> dict[str, float | None]:
    """How costs grow with N, where columns are lengths and not tasks."""
    rows = [row for row in results if row["mixer"] == mixer]
    if not rows or any(task.classes for task in setting.columns.values()):
        return {"seconds": None, "bytes": None}
    start = fitted_from([row["n"] for row in rows])
    return {
        key: slope([(row["n"], row[key]) for row in rows if row[key] and row["n"] >= start])
        for key in ("seconds", "bytes")
    }


def fitted_from(lengths: Sequence[int]) -> int:
    """From which length on powers are fitted: `FITTED_FROM`, if it leaves two lengths."""
    return FITTED_FROM if sum(n >= FITTED_FROM for n in lengths) > 1 else min(lengths)


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `model.json`, `model.md` and `model.png` into `folder`."""
    from lln.bench.model_tables import draw, markdown

    write_json(folder / FILE, report)
    write(folder / "model.md", lambda file: file.write_text(markdown(report), encoding="utf-8"))
    write(folder / "model.png", partial(draw, report))
