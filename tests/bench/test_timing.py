import pytest
import torch

from lln.bench import timing
from lln.bench.timing import interleave


def test_calls_take_turns(monkeypatch):
    order, advanced = [], []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    result = interleave(calls, repeats=2, seconds=0, advance=lambda: advanced.append(1))
    assert "".join(order) == "abc" + "abc" + "bca"  # warm-up, and two rounds that rotate
    assert len(advanced) == timing.rounds(3, 2)
    assert {t.calls for t in result.values()} == {2}
    assert all(0 <= t.minimum <= t.median for t in result.values())


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
