"""The process in which one `Cell` is measured: `python -m lln.bench.cell '{"case": "lln", …}'`.

It prints a `Peak` as JSON. The resident set is the honest measure on a CPU, because it sees what
libraries allocate behind torch's back; a process of its own keeps one cell from hiding in memory
that another has freed.
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from lln.bench import cases, instruments
from lln.bench.timing import Cell, Peak, synchronise

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM_UP = 64  # tokens


def main() -> None:
    """Measures the cell that the command line describes."""
    try:
        peak = Peak(measure(Cell(**json.loads(sys.argv[1]))))
    except (RuntimeError, MemoryError) as error:
        # torch has no type of its own for a CPU allocation that fails.
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        peak = Peak(None, "out of memory")
    sys.stdout.write(json.dumps(asdict(peak)) + "\n")


def measure(cell: Cell) -> int | None:
    """Bytes that the call needs beyond its inputs; None where the system does not tell."""
    torch.set_num_threads(cell.threads)
    device = torch.device(cell.device)
    if device.type == "cpu" and _resident_peak() is None:
        return None
    sizes = (cell.batch, cell.heads, cell.n, cell.head_dim)
    # Small inputs first: thread pools and code that is loaded late are not the call's memory.
    small = (*sizes[:2], min(cell.n, WARM_UP), sizes[3])
    _prepare(cell, small, device)()
    call = _prepare(cell, sizes, device)
    before = _start(device)
    call()
    synchronise(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) - before
    return (_resident_peak() or 0) - before


def _prepare(
    cell: Cell, sizes: tuple[int, int, int, int], device: torch.device
) -> Callable[[], object]:
    dtype = getattr(torch, cell.dtype)
    inputs = cases.inputs(*sizes, dtype=dtype, device=device)
    case = instruments.CASES.get(cell.case) or cases.find(cell.case)
    return cases.call(case, inputs, backward=cell.backward)


def _start(device: torch.device) -> int:
    """Forgets earlier peaks, and returns what is in use now."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    if CLEAR_REFS.exists():
        # proc(5): 5 sets the peak resident set back to the current one. Where that is forbidden,
        # set-up may have peaked higher, and the result is a lower bound.
        with suppress(OSError):
            CLEAR_REFS.write_text("5")
    return _resident_peak() or 0


def _resident_peak() -> int | None:
    """Peak resident set in bytes."""
    # Linux hands ru_maxrss of a large parent down to its children; this one starts afresh.
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
