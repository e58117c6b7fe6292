"""Time on machines that are shared and noisy."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

from lln import memory

LARGEST_KEPT = 2**25  # bytes; a heap that keeps larger blocks outgrows the memory
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
    # A call would pay, in page faults, for what the call before it gave back: a fifth of LLN's
    # time at N = 8192.
    memory.keep(LARGEST_KEPT)
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
