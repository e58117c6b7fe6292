"""What a run leaves behind: `run.json`, `metrics.jsonl` and `tensorboard/` in its folder.

`lln report` reads these files. Every line of `metrics.jsonl` has a `kind` (train, eval, attention),
the `step` and the `seconds` of training until then, over all resumes.
"""

import json
import math
import shutil
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lln.bench.record import environment
from lln.files import write, write_json
from lln.train.config import Run

MEASURES = ("alpha", "beta", "temperature", "entropy", "gap")


class Record:
    """The files of one run.

    Every process keeps the same history; only the first one writes.

    Args:
        run: what is trained.
        writes: whether this process writes.
    """

    def __init__(self, run: Run, *, writes: bool) -> None:
        self.run, self.writes = run, writes
        self.folder = run.folder
        self.train: list[dict[str, Any]] = []
        self.eval: list[dict[str, Any]] = []
        self.content = self._read()
        self._board: Any = None
        self._started = time.monotonic()
        self._before = 0.0

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.content.get("status") == "finished"

    def check(self) -> None:
        """Raises if the folder holds a run with another configuration."""
        if not self.content:
            return
        # Through JSON, which knows no tuples.
        ours, theirs = json.loads(json.dumps(self.run.config())), self.content.get("config", {})
        differing = sorted(differences(ours, theirs))
        if differing:
            raise ValueError(
                f"{self.folder} holds a run with other values of {'; '.join(differing)}: choose "
                "another name=…, or throw it away with --restart"
            )

    def forget(self) -> None:
        """Removes what earlier calls left."""
        if self.writes and self.folder.exists():
            shutil.rmtree(self.folder)
        self.content = {}

    def start(self, step: int, *, command: str, parameters: int, device: str) -> None:
        """Opens the files to go on after `step`, and drops what was written about later ones."""
        made = environment(device)
        packages = {name: made[name] for name in ("lln", "torch", "python")}
        lines = [line for line in self._lines() if _is_before(line, step)]
        for line in lines:
            if line["kind"] != "attention":
                (self.train if line["kind"] == "train" else self.eval).append(line)
        self._before = max((line["seconds"] for line in lines), default=0.0)
        self._started = time.monotonic()
        if not self.writes:
            return
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write(self._metrics, lambda file: file.write_text(text, encoding="utf-8"))
        self._open_board(step)
        mixer = self.run.mixer
        self.update(
            kind=self.run.experiment.kind,
            name=self.run.experiment.title,
            label=mixer.label,
            mixer=mixer.name,
            mixer_options=mixer.options,
            seed=self.run.seed,
            command=command,
            config=self.run.config(),
            versions=packages | _versions(),
            machine=made["machine"],
            commit=made["commit"],
            started=self.content.get("started", made["date"]),
            finished=None,
            status="running",
            parameters=parameters,
            final={},
        )

    def add(self, kind: str, step: int, **values: Any) -> None:
        """Adds a line to the metrics."""
        line = {"kind": kind, "step": step, "seconds": round(self.seconds, 3), **values}
        line = {key: _finite(value) for key, value in line.items()}
        if kind != "attention":
            (self.train if kind == "train" else self.eval).append(line)
        if not self.writes:
            return
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        for name, value in _scalars(line).items():
            self._board.add_scalar(name, value, step)

    def best(self, metric: str) -> dict[str, Any]:
        """The first evaluation with the best value: the largest, or the smallest loss."""
        choose = min if metric == "loss" else max
        return choose(self.eval, key=lambda line: line[metric])

    def finish(self, status: str, **final: Any) -> None:
        """Closes the files."""
        if self._board is not None:
            self._board.close()
            self._board = None
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.update(status=status, finished=now if status == "finished" else None, final=final)

    def update(self, **changes: Any) -> None:
        """Changes `run.json`."""
        self.content = {**self.content, **changes}
        if self.writes:
            write_json(self.folder / "run.json", self.content)

    @property
    def seconds(self) -> float:
        """Of training so far."""
        return self._before + time.monotonic() - self._started

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _read(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if not path.exists():
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        return content

    def _lines(self) -> list[dict[str, Any]]:
        """What was written so far, but for a last line that was cut off."""
        if not self._metrics.exists():
            return []
        lines = self._metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _open_board(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(self.folder / "tensorboard", purge_step=step + 1)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two configurations differ, with both values."""
    found = []
    for key in {**ours, **theirs}:
        one, other = ours.get(key), theirs.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append(f"{prefix}{key} ({other!r} there, {one!r} here)")
    return found


def _is_before(line: Mapping[str, Any], step: int) -> bool:
    """Whether a checkpoint of `step` knows of it; attention is measured as a step begins."""
    measured: int = line["step"]
    return measured < step if line["kind"] == "attention" else 0 < measured <= step


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """What TensorBoard shows of a line; of the attention, means of layers over heads."""
    kind = line["kind"]
    if kind != "attention":
        skipped = ("kind", "step", "seconds")
        return {f"{kind}/{k}": v for k, v in line.items() if k not in skipped and v is not None}
    layers: dict[tuple[str, int], list[float]] = {}
    for row in line["rows"]:
        for measure in MEASURES:
            if row.get(measure) is not None:
                layers.setdefault((measure, row["layer"]), []).append(row[measure])
    return {
        f"{measure}/layer {layer}": sum(values) / len(values)
        for (measure, layer), values in layers.items()
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("transformers", "accelerate", "datasets", "tokenizers", "safetensors")
    return {name: version(name) for name in names}
