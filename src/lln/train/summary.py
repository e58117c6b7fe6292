"""What the runs of an experiment came to, side by side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lln.files import write, write_json

KEYS = ("kind", "label", "mixer", "mixer_options", "seed", "parameters", "final")


@dataclass(frozen=True)
class Column:
    """A column of the table: a value of a run's `final`, in units of `unit`."""

    title: str
    key: str
    digits: int = 0
    unit: float = 1


COLUMNS = (
    Column("loss", "eval_loss", 4),
    Column("accuracy", "accuracy", 4),
    Column("F1", "f1", 4),
    Column("test accuracy", "test_accuracy", 4),
    Column("best step", "best_step"),
    Column("ms per step", "seconds_per_step", 1, 1e-3),
    Column("peak MiB", "peak_memory_bytes", unit=2**20),
    Column("seconds", "train_seconds"),
)


def summarise(folder: Path) -> None:
    """Writes `summary.json` and `summary.md` of all finished runs in the experiment's folder."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/run.json")]
    done = [record for record in records if record["status"] == "finished"]
    done.sort(key=lambda record: (record["label"], record["seed"]))
    content = [{key: record[key] for key in KEYS} for record in done]
    write_json(folder / "summary.json", {"name": folder.name, "runs": content})
    titles, rows = table(done)
    lines = [titles, ["---", *("---:" for _ in titles[1:])], *rows]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    write(folder / "summary.md", lambda file: file.write_text(text, encoding="utf-8"))


def table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows, a row for each run; without columns that no run has values for."""
    known = {
        key for record in records for key, value in record["final"].items() if value is not None
    }
    shown = [column for column in COLUMNS if column.key in known]
    rows = [
        [record["label"], str(record["seed"])]
        + [_cell(column, record["final"].get(column.key)) for column in shown]
        for record in records
    ]
    return ["mixer", "seed", *(column.title for column in shown)], rows


def _cell(column: Column, value: float | None) -> str:
    return "–" if value is None else f"{value / column.unit:,.{column.digits}f}"
