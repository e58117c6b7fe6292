"""Memory of a process: how much it has in use, and whether it keeps what is freed."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's mallopt
SETTINGS = ("MALLOC_MMAP_", "MALLOC_TRIM_")  # how glibc's own begin, in the environment


def forget_peak(device: torch.device) -> None:
    """Starts to look for a peak anew, in which what was kept for later does not count.

    Where the system forbids it, the old peak still counts.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    give_back = _of_glibc("malloc_trim")
    if give_back is not None:
        give_back(0)
    # proc(5): 5 sets the peak resident set back to the current one.
    with suppress(OSError):
        CLEAR_REFS.write_text("5")


def peak(device: torch.device) -> int | None:
    """The most bytes in use since `forget_peak`; None where the system does not tell.

    On a CPU it is the resident set, which sees what libraries allocate behind torch's back.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux hands ru_maxrss of a large parent down to its children; this one starts afresh.
    found = _resident("VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def in_use(device: torch.device) -> int | None:
    """Bytes in use now; None where the system does not tell."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident("VmRSS")


def keep(up_to: int | None = None) -> bool:
    """Has this process keep what it frees of the CPU's memory, for as long as it runs.

    By default glibc gives large blocks back to the system, those above 32 MiB always; the next
    step takes them anew, and pays for it in page faults. What is kept has holes: where lengths vary
    and matrices are N×N, memory grew by three quarters. Elsewhere than on Linux with glibc, or
    where the environment says what to keep (`SETTINGS`), this does nothing and returns False.

    Args:
        up_to: bytes of the largest block to keep; all by default. Before 2.35, glibc refuses more
            than 2**25.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None or any(name.startswith(SETTINGS) for name in os.environ):
        return False
    # Blocks come from the heap then, and the heap never shrinks. glibc answers 1 if it complies.
    from_heap = mallopt(M_MMAP_MAX, 0) if up_to is None else mallopt(M_MMAP_THRESHOLD, up_to)
    return bool(from_heap and mallopt(M_TRIM_THRESHOLD, -1))


def _of_glibc(function: str) -> Any:
    """None where there is no such function."""
    try:
        return getattr(ctypes.CDLL(None), function)
    except (AttributeError, OSError, TypeError):
        return None


def _resident(field: str) -> int | None:
    """A line of proc(5) such as `VmRSS:  1234 kB`."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
