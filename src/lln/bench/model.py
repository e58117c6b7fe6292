"""`lln bench model`: a real training step, as in the paper's Tables 2 and 4."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lln.bench import contract, record
from lln.bench.growth import slope
from lln.bench.timing import peak_memory, time_alone
from lln.files import write, write_json
from lln.registry import parse

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FITTED_FROM = 2048  # below, what does not depend on N still counts
MIXERS = ("softmax", "nystromformer", "lln", "lln_diag")  # those of Table 2
DTYPES = ("float32", "bfloat16", "float16")
WARM_UP = 64  # tokens
MASKED = 0.15  # of the tokens, as in RoBERTa
SPECIAL = 5  # ids below are not words


@dataclass(frozen=True)
class Size:
    """Of a model."""

    layers: int
    dim: int
    heads: int
    hidden: int
    vocabulary: int = 50265


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


@dataclass(frozen=True)
class StepCell:
    """One training step: forward, backward, AdamW.

    Attributes:
        mixer: a name, with options such as `lln_diag+block_size=128`.
        size: the fields of a `Size`.
        classes: of a classification; 0 for masked language modelling.
        dtype: of autocast; parameters are float32.
    """

    mixer: str
    n: int
    batch: int
    size: Mapping[str, int]
    classes: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2

    def prepare(self, *, small: bool = False) -> Callable[[], object]:
        """The model after a short step, which makes the optimiser's state; and a long one."""
        torch.manual_seed(0)
        model = self._build().to(self.device).train()
        # Fused, as transformers' Trainer has it.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        short = partial(self._step, model, optimizer, *self._batch(min(self.n, WARM_UP)))
        if small:
            return short
        short()
        optimizer.zero_grad()
        return partial(self._step, model, optimizer, *self._batch(self.n))

    def _build(self) -> torch.nn.Module:
        from lln.models import (
            EncoderConfig,
            EncoderForMaskedLM,
            EncoderForSequenceClassification,
        )

        size, (name, options) = Size(**self.size), parse(self.mixer)
        config = EncoderConfig(
            mixer=name,
            mixer_options=options,
            num_hidden_layers=size.layers,
            hidden_size=size.dim,
            num_attention_heads=size.heads,
            intermediate_size=size.hidden,
            vocab_size=size.vocabulary,
            max_position_embeddings=self.n + 2,
            num_labels=max(self.classes, 2),
            pooling="mean" if self.classes else "first",
        )
        if self.classes:
            return EncoderForSequenceClassification(config)
        return EncoderForMaskedLM(config)

    def _batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, n)
        tokens = torch.randint(SPECIAL, self.size["vocabulary"], shape, generator=generator)
        if self.classes:
            labels = torch.randint(self.classes, shape[:1], generator=generator)
        else:
            masked = torch.rand(shape, generator=generator) < MASKED
            labels = tokens.where(masked, -100)
        return tokens.to(self.device), labels.to(self.device)

    def _step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tokens: torch.Tensor,
        labels: torch.Tensor,
    ) -> None:
        optimizer.zero_grad()
        half = self.dtype != "float32"
        kind = torch.device(self.device).type
        with torch.autocast(kind, getattr(torch, self.dtype) if half else None, enabled=half):
            loss = model(tokens, labels=labels).loss
        loss.backward()
        optimizer.step()


@dataclass(frozen=True)
class Setting:
    """What is measured: each mixer at each length, or on each task.

    Attributes:
        mixers: names, with options such as `lln_diag+block_size=128`.
        size: of the model.
        columns: the length, batch and number of classes (0 for masked language modelling) of each
            column of the table.
        repeats: steps that are timed, fewer if they take longer than `budget` seconds.
        timeout: seconds for one measurement, of time or of memory.
        gate: measure only what keeps the contract.
    """

    mixers: Sequence[str]
    size: Size
    columns: Mapping[str, Task]
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2
    repeats: int = 5
    budget: float = 30
    timeout: float = 900
    gate: bool = True

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        return self.gate * len(self.mixers) + len(self.mixers) * len(self.columns)


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


def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `model.json` holds."""
    load, red, results = record.load(), dict[str, str](), []
    for mixer in setting.mixers if setting.gate else ():
        if reason := contract.red(parse(mixer)[0], device=setting.device):
            red[mixer] = reason
        advance()
    mixers = [mixer for mixer in setting.mixers if mixer not in red]
    for column, task in setting.columns.items():
        for mixer in mixers:
            results.append({"mixer": mixer, "column": column, **_measure(setting, mixer, task)})
            advance()
    return {
        "benchmark": "model",
        **record.environment(setting.device),
        "load_before": load,
        "setting": asdict(setting),
        "red": red,
        "results": results,
        "exponents": {
            mixer: {key: _exponent(results, mixer, key) for key in ("seconds", "bytes")}
            for mixer in mixers
        },
    }


def _measure(setting: Setting, mixer: str, task: Task) -> dict[str, Any]:
    cell = StepCell(
        mixer,
        task.n,
        task.batch,
        asdict(setting.size),
        task.classes,
        setting.dtype,
        setting.device,
        setting.threads,
    )
    peak = peak_memory(cell, timeout=setting.timeout)
    row: dict[str, Any] = {"n": task.n, "batch": task.batch, "bytes": peak.total}
    if peak.problem:  # then there is no use in timing it
        return row | {"seconds": None, "problem": peak.problem}
    spent = time_alone(
        cell, repeats=setting.repeats, budget=setting.budget, timeout=setting.timeout
    )
    return row | asdict(spent)


def _exponent(results: list[dict[str, Any]], mixer: str, key: str) -> float | None:
    """How a cost grows with N, where batches are alike."""
    rows = [row for row in results if row["mixer"] == mixer]
    if len({row["batch"] for row in rows}) > 1:
        return None
    points = [(row["n"], row[key]) for row in rows if row[key]]
    start = fitted_from([row["n"] for row in rows])
    return slope([point for point in points if point[0] >= start])


def fitted_from(lengths: Sequence[int]) -> int:
    """From which length on powers are fitted: `FITTED_FROM`, if it leaves two lengths."""
    return FITTED_FROM if sum(n >= FITTED_FROM for n in lengths) > 1 else min(lengths)


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `model.json`, `model.md` and `model.png` into `folder`."""
    from lln.bench.model_tables import draw, markdown

    write_json(folder / "model.json", report)
    write(folder / "model.md", lambda file: file.write_text(markdown(report), encoding="utf-8"))
    write(folder / "model.png", partial(draw, report))
