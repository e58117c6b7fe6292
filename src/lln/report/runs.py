"""Folders of training runs, read into plain numbers.

A run's folder holds `run.json`, what was run and what came out, and `metrics.jsonl`, a line for
each thing measured on the way. A run may still be going on, or have been killed while it wrote.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lln.report.curves import Curve, Row, attention_curves, layer_names, number, plain_curves

RUN, METRICS = "run.json", "metrics.jsonl"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: of the experiment.
        label: of the mixer, with its options.
        seed: of everything random.
        kind: `pretrain`, `finetune`, `vit` or `lra`.
        status: `running`, `finished` or `failed`.
        command: that was given.
        versions: of packages.
        machine: it ran on.
        commit: of this package; None where it is not known.
        started: when.
        finished: when; None before.
        parameters: of the model; None where they were not counted.
        config: the whole of it.
        final: what came out, by name.
        train: a curve for each number logged in training.
        evaluation: a curve for each number of the evaluations.
        attention: measure → layer → mean and range over its heads.
        layers: number → name of those measured.
        notes: what to know about this run.
    """

    name: str
    label: str
    seed: int
    kind: str
    status: str
    command: str
    versions: dict[str, Any]
    machine: dict[str, Any]
    commit: str | None
    started: str | None
    finished: str | None
    parameters: int | None
    config: dict[str, Any]
    final: dict[str, float]
    train: dict[str, Curve] = field(default_factory=dict)
    evaluation: dict[str, Curve] = field(default_factory=dict)
    attention: dict[str, dict[str, Curve]] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of all runs at or below `paths`, each once."""
    folders: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}; RUN is the folder of a run or of several")
        found = sorted((file.parent.resolve() for file in path.rglob(RUN)), key=_order)
        if not found:
            raise ValueError(
                f"{path} holds no run: there is no {RUN}, which lln pretrain, finetune, vit and "
                "lra write"
            )
        folders.update(dict.fromkeys(found))
    return list(folders)


def _order(folder: Path) -> tuple[Path, list[str]]:
    """A label before the same one with options, though `-seed0` sorts after `+option=1-seed0`."""
    return folder.parent, folder.name.rsplit("-seed", 1)


def read_run(folder: Path) -> Run:
    """The run in `folder`."""
    head = _read_head(folder / RUN)
    rows, notes = _read_metrics(folder / METRICS)
    status = head.get("status", "finished")
    last = max((row["step"] for kind in rows.values() for row in kind), default=0)
    if status == "running":
        notes.insert(0, f"still running, or interrupted; the last entry is of step {last}")
    elif status != "finished":
        notes.insert(0, f"{status} after step {last}")
    lost = [row for row in rows["train"] if "loss" in row and number(row["loss"]) is None]
    if lost:
        notes.append(f"the training loss is not a finite number at step {lost[0]['step']}")
    known = {key: number(value) for key, value in (head.get("final") or {}).items()}
    return Run(
        name=str(head["name"]),
        label=str(head["label"]),
        seed=int(head["seed"]),
        kind=str(head.get("kind", "")),
        status=str(status),
        command=str(head.get("command", "")),
        versions=head.get("versions") or {},
        machine=head.get("machine") or {},
        commit=head.get("commit"),
        started=head.get("started"),
        finished=head.get("finished"),
        parameters=head.get("parameters"),
        config=head.get("config") or {},
        final={key: value for key, value in known.items() if value is not None},
        train=plain_curves(rows["train"]),
        evaluation=plain_curves(rows["eval"]),
        attention=attention_curves(rows["attention"]),
        layers=layer_names(rows["attention"]),
        notes=tuple(notes),
    )


def _read_head(file: Path) -> dict[str, Any]:
    try:
        head = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from None
    if not isinstance(head, dict):
        raise ValueError(f"{file} is not of a run: it holds no object")
    missing = [key for key in ("name", "label", "seed") if key not in head]
    if missing:
        raise ValueError(f"{file} is not of a run: it lacks {', '.join(missing)}")
    return head


def _read_metrics(file: Path) -> tuple[dict[str, list[Row]], list[str]]:
    """The rows by their kind, and what was wrong."""
    rows: dict[str, list[Row]] = defaultdict(list)
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return rows, [f"there is no {METRICS} yet"]
    damaged = 0
    for line in filter(None, lines):
        row = _parse(line)
        if row is None:
            damaged += 1
            continue
        kind = rows[row.pop("kind")]
        # A resumed run repeats the steps after its last checkpoint; what it says last holds.
        while kind and kind[-1]["step"] >= row["step"]:
            kind.pop()
        kind.append(row)
    if not damaged:
        return rows, []
    lost = "1 line" if damaged == 1 else f"{damaged} lines"
    return rows, [f"left out {lost} of {METRICS}, cut off as when a run is killed"]


def _parse(line: bytes) -> Row | None:
    """The row of a line; None if the line is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not {"kind", "step", "seconds"} <= row.keys():
        return None
    return row if row["kind"] != "attention" or "rows" in row else None
