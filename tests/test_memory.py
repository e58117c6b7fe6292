import platform
import subprocess
import sys

import pytest
import torch

from lln import memory

CPU = torch.device("cpu")
needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")


def test_a_peak_is_remembered_until_it_is_forgotten():
    if memory.in_use(CPU) is None or not memory.CLEAR_REFS.exists():
        pytest.skip("this system does not tell a process about its memory")
    size = 2**28
    memory.forget_peak(CPU)
    before = memory.peak(CPU)
    torch.ones(size, dtype=torch.uint8)
    assert memory.peak(CPU) - before > 0.9 * size
    memory.forget_peak(CPU)
    assert memory.peak(CPU) == pytest.approx(memory.in_use(CPU), abs=size // 16)


@needs_glibc
@pytest.mark.parametrize(
    ("setting", "block", "kept"),
    [
        ("", 2**26, False),
        ("memory.keep()", 2**26, True),
        ("memory.keep(2**25)", 2**24, True),
        ("memory.keep(2**25)", 2**26, False),
    ],
)
def test_freed_memory_is_kept_until_its_peak_is_forgotten(setting, block, kept):
    script = f"""
import torch
from lln import memory
{f"assert {setting}" if setting else ""}
cpu = torch.device("cpu")
torch.ones(1)
before = memory.in_use(cpu)
torch.ones({block}, dtype=torch.uint8)
print(memory.in_use(cpu) - before)
memory.forget_peak(cpu)
print(memory.peak(cpu) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    freed, forgotten = map(int, done.stdout.split())
    assert (freed > 0.9 * block) == kept
    assert forgotten < 0.1 * block


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert not memory.keep()


@pytest.mark.parametrize(
    ("name", "kept"), [("MALLOC_MMAP_MAX_", False), ("MALLOC_ARENA_MAX", True)]
)
def test_what_the_environment_says_is_left_alone(name, kept, monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "_of_glibc", lambda function: lambda *args: calls.append(args) or 1)
    for setting in [x for x in memory.os.environ if x.startswith(memory.SETTINGS)]:
        monkeypatch.delenv(setting)
    monkeypatch.setenv(name, "65536")
    assert memory.keep() == kept
    assert bool(calls) == kept
