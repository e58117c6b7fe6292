import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO

import pytest

from lln import memory
from lln.bench import alone, timing
from lln.bench import cell as cell_process
from lln.bench.alone import Cell, Peak, Spent, peak_memory, time_in_turns


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
    found = time_in_turns({"a": cell}, repeats=1, budget=1, timeout=0.01)
    assert found == {"a": Spent(None, "time-out")}


def test_a_failure_is_a_result(monkeypatch):
    monkeypatch.setattr(alone.sys, "executable", "false")
    assert peak_memory(Cell("products", n=64)) == Peak(None, "failed: exit code 1")


def test_processes_take_turns():
    cells = {"fits": Cell("products", n=64), "does not": Cell("products", n=2**40)}
    found = time_in_turns(cells, repeats=2, budget=100)
    assert found["fits"].problem is None
    assert found["fits"].seconds > 0
    assert found["fits"].calls == 2
    assert found["does not"] == Spent(None, "out of memory")


def timed(seconds, calls):
    return Spent(seconds, calls=calls)


@pytest.mark.parametrize(
    ("answers", "repeats", "expected"),
    [
        # The first call is not counted, however long it takes.
        ({"a": (9, 1, 3, 2)}, 3, {"a": timed(2, 3)}),
        # Another one is; and when one cell has used its time up, all stop.
        ({"a": (9, 6), "b": (1, 1)}, 3, {"a": timed(6, 1), "b": timed(1, 1)}),
        # What fails takes no further part.
        ({"a": (1, "why"), "b": (1, 1, 3)}, 2, {"a": Spent(None, "why"), "b": timed(2, 2)}),
    ],
)
def test_rounds(answers, repeats, expected, monkeypatch):
    order, ended = [], []

    @contextmanager
    def process(name, measure, environment):
        left = iter(answers[name])

        def ask(timeout):
            order.append(name)
            found = next(left)
            return found if isinstance(found, str) else {"seconds": found}

        yield ask
        ended.append(name)

    monkeypatch.setattr(alone, "_process", process)
    cells = {name: name for name in answers}
    assert time_in_turns(cells, repeats=repeats, budget=5) == expected
    assert sorted(ended) == list(answers)
    assert "".join(order[: len(cells) * 2]) == "".join(cells) * 2


@dataclass
class Noisy:
    """A call that prints."""

    device: str = "cpu"
    threads: int = 1

    def prepare(self, *, small=False):
        return lambda: print("from a library")


@pytest.mark.parametrize(("measure", "kept"), [("time", [()]), ("memory", [])])
def test_memory_is_kept_where_time_is_measured_and_nowhere_else(measure, kept, monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "keep", lambda *args: calls.append(args))
    with timing.threads(1):
        assert len(list(cell_process.answer(Noisy(), measure, ["", ""]))) == 2
    assert calls == kept


def test_what_a_call_prints_is_no_answer(capsys, monkeypatch):
    request = {"kind": f"{__name__}:Noisy", "cell": {}, "measure": "time"}
    monkeypatch.setattr("sys.argv", ["", json.dumps(request)])
    monkeypatch.setattr("sys.stdin", StringIO("\n\n"))
    monkeypatch.setattr("sys.stdout", sys.stdout)  # main replaces it: put it back afterwards
    with timing.threads(1):
        cell_process.main()
    printed = capsys.readouterr()
    assert [json.loads(line)["seconds"] >= 0 for line in printed.out.splitlines()] == [True, True]
    assert printed.err.splitlines() == ["from a library"] * 3  # the first to warm up
