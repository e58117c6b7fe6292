import platform

import pytest
import torch

from lln.bench import cell as cell_process
from lln.bench import timing
from lln.bench.timing import Cell, Peak, Spent, interleave, peak_memory, time_alone


def test_calls_take_turns(monkeypatch):
    order, advanced = [], []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    result = interleave(calls, repeats=2, seconds=0, advance=lambda: advanced.append(1))
    assert "".join(order) == "abc" + "abc" + "bca"  # warm-up, and two rounds that rotate
    assert len(advanced) == timing.rounds(3, 2)
    assert {t.calls for t in result.values()} == {2}
    assert all(0 <= t.minimum <= t.median for t in result.values())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc to keep memory")
def test_the_allocator_takes_what_it_is_told():
    assert timing.keep_memory()


def test_fast_calls_run_more_often(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def lasting(seconds):
        def call():
            now[0] += seconds

        return call

    result = interleave(
        {"slow": lasting(2.0), "fast": lasting(0.05), "faster": lasting(1e-6)},
        repeats=3,
        seconds=0.2,
    )
    assert (result["slow"].calls, result["slow"].median) == (3, 2.0)
    assert result["fast"].calls in (9, 12)  # 3 or 4 per round, as 0.2 / 0.05 rounds
    assert result["fast"].median == pytest.approx(0.05)
    assert result["faster"].calls == 3 * timing.MAX_CALLS


def test_a_call_behind_another_case_is_not_counted(monkeypatch):
    now, last = [0.0], [None]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def slower_behind_another(name):
        def call():
            now[0] += 0.05 if last[0] == name else 0.1
            last[0] = name

        return call

    result = interleave({name: slower_behind_another(name) for name in "abc"}, seconds=0.11)
    for found in result.values():
        assert found.calls == 5 * 2  # as many as fit, by the second call
        assert found.median == pytest.approx(0.05)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with timing.threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_peak_memory_counts_what_the_call_allocates():
    # The product of 64×64 is small; the output has the size of q.
    peak = peak_memory(Cell("products", n=16384, heads=8))
    assert peak.problem is None
    if peak.bytes is None:
        pytest.skip("this system does not tell a process its peak memory")
    output = 16384 * 8 * 64 * 4
    assert 0.95 * output < peak.bytes < 1.2 * output

    inputs = 4 * output
    assert 0.95 * inputs < peak.total - peak.bytes < 1.2 * inputs


def test_running_out_of_memory_is_a_result():
    assert peak_memory(Cell("products", n=2**40)) == Peak(None, "out of memory")


def test_running_out_of_time_is_a_result():
    cell = Cell("products", n=64)
    assert peak_memory(cell, timeout=0.01) == Peak(None, "time-out")
    found = time_alone(cell, repeats=1, budget=1, timeout=0.01)
    assert found == Spent(None, "time-out")


def test_a_failure_is_a_result(monkeypatch):
    monkeypatch.setattr(timing.sys, "executable", "false")
    assert peak_memory(Cell("products", n=64)) == Peak(None, "failed: exit code 1")


class Counted:
    """A call that lasts as long as it is told to."""

    device, threads = "cpu", 1

    def __init__(self, *seconds):
        self.seconds, self.calls, self.small = iter(seconds), 0, []

    def prepare(self, *, small=False):
        self.small.append(small)
        return self.warm_up if small else self.call

    def warm_up(self):
        pass

    def call(self):
        self.now[0] += next(self.seconds)
        self.calls += 1


@pytest.mark.parametrize(
    ("seconds", "repeats", "budget", "expected"),
    [
        ((9.0, 1.0, 3.0, 2.0), 3, 100, Spent(2.0, calls=3)),  # the first is not counted
        ((9.0, 1.0, 3.0), 3, 9.5, Spent(1.0, calls=1)),
        ((9.0, 4.0), 3, 5, Spent(4.0, calls=1)),  # but another is, however slow
    ],
)
def test_steps_are_timed_within_a_budget(monkeypatch, seconds, repeats, budget, expected):
    Counted.now = [0.0]
    monkeypatch.setattr(cell_process.time, "perf_counter", lambda: Counted.now[0])
    counted = Counted(*seconds)
    with timing.threads(1):
        assert cell_process.measure_time(counted, repeats, budget) == expected
    assert counted.small == [True, False]
