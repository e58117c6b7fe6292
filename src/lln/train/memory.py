"""Memory of a training: of the GPU, or the resident set of the process."""

from contextlib import suppress
from pathlib import Path

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak(device: torch.device) -> None:
    """Starts to look for a peak anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # proc(5): 5 sets the peak resident set back to the current one.
        with suppress(OSError):
            CLEAR_REFS.write_text("5")


def peak(device: torch.device) -> int | None:
    """The most bytes in use since `forget_peak`; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _resident("VmHWM")


def in_use(device: torch.device) -> int | None:
    """Bytes in use now; None where the system does not tell."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident("VmRSS")


def _resident(field: str) -> int | None:
    """A line of proc(5) such as `VmRSS:  1234 kB`."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
