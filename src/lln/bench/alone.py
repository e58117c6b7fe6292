"""Time and peak memory of calls that have a process each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from statistics import median
from tempfile import TemporaryFile
from threading import Event, Timer
from typing import Any, Protocol

import torch

# glibc keeps freed memory for itself, by rules that depend on what was freed before. Returned at
# once, the resident set is what the call needs.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
OUT_OF_MEMORY, TIME_OUT = "out of memory", "time-out"
WARM_UP = 512  # tokens; some peers take no fewer


class Alone(Protocol):
    """A call that is measured in a process of its own: a dataclass of what JSON can hold."""

    @property
    def device(self) -> str:
        """Where it runs."""

    @property
    def threads(self) -> int:
        """Of the CPU."""

    def prepare(self, *, small: bool = False) -> Callable[[], object]:
        """Makes its inputs, and returns the call; `small` is for warming up."""


@dataclass(frozen=True)
class Cell:
    """One call of an attention.

    Attributes:
        case: one of `lln.bench.cases.names()` or of `lln.bench.instruments.CASES`.
        n: sequence length.
        backward: measure the backward pass too.
    """

    case: str
    n: int
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    backward: bool = False

    def prepare(self, *, small: bool = False) -> Callable[[], object]:
        """Gaussian inputs, and the call."""
        from lln.bench import cases, instruments  # which import this module

        n = min(self.n, WARM_UP) if small else self.n
        dtype = getattr(torch, self.dtype)
        sizes = (self.batch, self.heads, n, self.head_dim)
        x = cases.inputs(*sizes, dtype=dtype, device=self.device)
        case = instruments.CASES.get(self.case) or cases.find(self.case)
        return cases.call(case, x, backward=self.backward)


@dataclass(frozen=True)
class Peak:
    """Peak memory of one call.

    Attributes:
        bytes: beyond its inputs; None where it could not be measured.
        problem: why not: `out of memory`, `time-out`, or what failed.
        total: with its inputs, and all that was made for the call.
    """

    bytes: int | None
    problem: str | None = None
    total: int | None = None


@dataclass(frozen=True)
class Spent:
    """Time of one call.

    Attributes:
        seconds: the median; None where it could not be measured.
        problem: why not, as in `Peak`.
        calls: how many were timed.
    """

    seconds: float | None
    problem: str | None = None
    calls: int = 0


def peak_memory(cell: Alone, *, timeout: float = 120) -> Peak:
    """Measures `cell` in a fresh process. Running out of memory or time is a result."""
    with _process(cell, "memory", RETURN_MEMORY) as ask:
        found = ask(timeout)
    return Peak(None, found) if isinstance(found, str) else Peak(**found)


def time_in_turns(
    cells: Mapping[str, Alone], *, repeats: int, budget: float, timeout: float = 120
) -> dict[str, Spent]:
    """Times cells that have a fresh process each, in turns: a disturbance hits all of them alike.

    Processes of their own, as returning memory at once, which `peak_memory` asks for, takes time.

    Args:
        cells: what to time. The memory has to have room for all of them.
        repeats: how many rounds, after one that is not counted: there processes take their
            memory from the system, which is a tenth to a fourth of the time of a training step.
        budget: no further round begins once the counted calls of a cell took so many seconds;
            one round always counts.
        timeout: seconds for one call, or for what precedes the first.
    """
    samples: dict[str, list[float]] = {name: [] for name in cells}
    problems: dict[str, str] = {}
    with ExitStack() as stack:
        asks = {n: stack.enter_context(_process(cell, "time", {})) for n, cell in cells.items()}
        for _ in range(1 + repeats):
            for name in [name for name in cells if name not in problems]:
                found = asks[name](timeout)
                if isinstance(found, str):
                    problems[name] = found
                else:
                    samples[name].append(found["seconds"])
            if any(sum(times[1:]) >= budget for times in samples.values() if times[1:]):
                break
    return {
        name: Spent(None, problems[name])
        if name in problems
        else Spent(median(times[1:]), calls=len(times) - 1)
        for name, times in samples.items()
    }


@contextmanager
def _process(
    cell: Alone, measure: str, environment: dict[str, str]
) -> Iterator[Callable[[float], dict[str, Any] | str]]:
    """Starts `lln.bench.cell`. Each call of what this gives has it measure once.

    Its argument is how many seconds that may take; it returns what was found, or the problem.
    """
    kind = f"{type(cell).__module__}:{type(cell).__qualname__}"
    request = {"kind": kind, "cell": asdict(cell), "measure": measure}  # type: ignore[call-overload]
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "lln.bench.cell", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        ) as process,
    ):
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None  # they are pipes
        assert stdout is not None

        def ask(timeout: float) -> dict[str, Any] | str:
            late = Event()

            def stop() -> None:
                late.set()
                process.kill()

            timer = Timer(timeout, stop)
            timer.start()
            try:
                with suppress(BrokenPipeError):  # if it has ended, the answer is missing
                    os.write(stdin.fileno(), b"\n")  # a buffer would be flushed to it once more
                answer = stdout.readline()
            finally:
                timer.cancel()
            if answer:
                found: dict[str, Any] = json.loads(answer)
                return found.get("problem") or found
            if late.is_set():
                return TIME_OUT
            if process.wait() == -9:  # how Linux ends a process when memory runs out
                return OUT_OF_MEMORY
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"exit code {process.returncode}"]
            return f"failed: {lines[-1]}"

        try:
            yield ask
        finally:
            process.kill()
