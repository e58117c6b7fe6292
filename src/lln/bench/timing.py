"""Time and peak memory on machines that are shared and noisy."""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

import torch

# glibc keeps freed memory for itself, by rules that depend on what was freed before. Returned at
# once, the resident set is what the call needs.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST_KEPT = 2**25  # bytes; a heap that keeps larger blocks outgrows the memory
OUT_OF_MEMORY, TIME_OUT = "out of memory", "time-out"
WARM_UP = 512  # tokens; some peers take no fewer
MAX_CALLS = 16  # per round: beyond it, a fast call only makes the benchmark longer


@dataclass(frozen=True)
class Timing:
    """Seconds per call.

    Attributes:
        median: robust against interruptions; ratios are taken of medians.
        minimum: the least disturbed call.
        calls: how many calls were timed.
    """

    median: float
    minimum: float
    calls: int


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 5,
    seconds: float = 0.5,
    device: torch.device | str = "cpu",
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Times several calls in turns, so that a disturbance hits all of them alike.

    Args:
        calls: what to time.
        repeats: how many rounds. Each call runs at least once per round.
        seconds: a call that is faster runs several times per round, for about this long, after one
            that is not counted.
        device: where the calls run; a GPU is waited for.
        advance: called once per call and round, the warm-up round included, for a progress bar.
    """
    keep_memory()
    per_round = {}
    for name, call in calls.items():
        # The first call pays for thread pools, caches and memory from the system: not counted,
        # and where it leaves time for others, the second says for how many.
        once = _seconds(call, device)
        once = _seconds(call, device) if once < seconds else once
        per_round[name] = max(1, min(MAX_CALLS, int(seconds / max(once, 1e-9))))
        advance()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for _ in range(repeats):
        for name in names:
            if per_round[name] > 1:  # the first finds the caches as another case left them
                calls[name]()
            samples[name] += [_seconds(calls[name], device) for _ in range(per_round[name])]
            advance()
        names = names[1:] + names[:1]  # so that none always runs behind the same neighbour
    return {name: Timing(median(s), min(s), len(s)) for name, s in samples.items()}


def keep_memory() -> bool:
    """Lets glibc keep what is freed, in blocks up to `LARGEST_KEPT`, as long as this process runs.

    Otherwise a call pays, in page faults, for what the call before it gave back: a fifth of LLN's
    time at N = 8192. Elsewhere than on Linux with glibc this does nothing, and returns False.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Smaller blocks come from the heap, and the heap never shrinks. glibc answers 1 if it complies.
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(M_TRIM_THRESHOLD, -1))


def rounds(calls: int, repeats: int) -> int:
    """How often `interleave` calls `advance`."""
    return calls * (repeats + 1)


def _seconds(call: Callable[[], object], device: torch.device | str) -> float:
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device | str) -> None:
    """Waits for a GPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs torch with `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    found = _alone(cell, "memory", timeout, RETURN_MEMORY)
    return Peak(None, found) if isinstance(found, str) else Peak(**found)


def time_alone(cell: Alone, *, repeats: int, budget: float, timeout: float = 120) -> Spent:
    """Times `cell` in a fresh process, up to `repeats` calls in about `budget` seconds.

    It is not the process in which memory is measured: returning memory at once takes time.
    """
    options = {"repeats": repeats, "budget": budget}
    found = _alone(cell, "time", timeout, {}, **options)
    return Spent(None, found) if isinstance(found, str) else Spent(**found)


def _alone(
    cell: Alone, measure: str, timeout: float, environment: dict[str, str], **options: float
) -> dict[str, Any] | str:
    """What `lln.bench.cell` found, or the problem."""
    kind = f"{type(cell).__module__}:{type(cell).__qualname__}"
    request = {"kind": kind, "cell": asdict(cell), "measure": measure, "options": options}  # type: ignore[call-overload]
    command = [sys.executable, "-m", "lln.bench.cell", json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        return TIME_OUT
    if done.returncode == -9:  # how Linux ends a process when memory runs out
        return OUT_OF_MEMORY
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"failed: {lines[-1]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
