"""What makes a measurement comparable: the machine, the versions, the commit."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import lln

PACKAGE = Path(lln.__file__).resolve().parent


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Where and when a measurement was made."""
    machine = {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()}
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return {
        "machine": machine,
        "lln": lln.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def origin(report: dict[str, Any]) -> str:
    """A sentence that says where a report was made."""
    machine = report["machine"]
    place = machine.get("gpu") or f"{machine['processor']} ({machine['cores']} cores)"
    return (
        f"Measured on {place}, {machine['system']}, with lln {report['lln']} "
        f"({report['commit'] or 'installed'}), torch {report['torch']}, "
        f"Python {report['python']}, {report['date']}."
    )


def load() -> float | None:
    """How many programs wanted a core in the last minute; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return None


def free_memory() -> int | None:
    """Bytes that programs could have; None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit that this package was checked out at; None for an installed package.

    It is `-dirty` if the package differs from it; results that are written beside it do not count.
    """
    checkout = PACKAGE.parent.parent
    if not (checkout / ".git").exists():  # or git would name a repository that only surrounds us
        return None
    try:
        name = _git("describe", "--always", "--tags")
        return f"{name}-dirty" if _git("status", "--porcelain", "--", str(PACKAGE)) else name
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PACKAGE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
