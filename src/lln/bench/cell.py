"""The process in which one call is measured alone: see `lln.bench.alone`.

For every line that it reads, it measures once and answers with a line of JSON. The resident set is
the honest measure of memory on a CPU, because it sees what libraries allocate behind torch's back;
a process of its own keeps one cell from hiding in memory that another has freed.
"""

import gc
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch

from lln import memory
from lln.bench.alone import OUT_OF_MEMORY, Alone, Peak
from lln.bench.timing import synchronise


def main() -> None:
    """Measures the cell that the command line describes."""
    request = json.loads(sys.argv[1])
    module, _, name = request["kind"].partition(":")
    cell: Alone = getattr(import_module(module), name)(**request["cell"])
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    try:
        for found in answer(cell, request["measure"], sys.stdin):
            print(json.dumps(found), file=answers, flush=True)
    except (RuntimeError, MemoryError) as error:
        # torch has no type of its own for a CPU allocation that fails.
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        print(json.dumps({"problem": OUT_OF_MEMORY}), file=answers, flush=True)


def answer(cell: Alone, measure: str, requests: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A `Peak`, or the seconds of another call, for each of the requests."""
    if measure == "memory":
        for _ in requests:
            yield asdict(measure_memory(cell))
        return
    memory.keep()  # as a training does
    device = _warm_up(cell)
    call = cell.prepare()
    for _ in requests:
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        yield {"seconds": time.perf_counter() - start}


def measure_memory(cell: Alone) -> Peak:
    """Bytes that the call needs; None where the system does not tell."""
    device = _warm_up(cell)
    if memory.peak(device) is None:
        return Peak(None)
    bare = _start(device)
    call = cell.prepare()
    before = _start(device)
    call()
    synchronise(device)
    peak = memory.peak(device) or 0
    return Peak(peak - before, total=peak - bare)


def _warm_up(cell: Alone) -> torch.device:
    """A small call first: thread pools and code that is loaded late are not the call's."""
    torch.set_num_threads(cell.threads)
    cell.prepare(small=True)()
    gc.collect()
    return torch.device(cell.device)


def _start(device: torch.device) -> int:
    """Forgets earlier peaks, and returns what is in use now.

    Where peaks cannot be forgotten, set-up may have peaked higher, and the result is a lower bound.
    """
    synchronise(device)
    memory.forget_peak(device)
    return memory.peak(device) or 0


if __name__ == "__main__":
    main()
