import json

import pytest
from typer.testing import CliRunner

from lln.bench import instruments
from lln.bench.alone import Cell, Peak, peak_memory
from lln.cli.app import app

TINY = instruments.Setting(n=300, threads=1, repeats=1)


def test_report_table_and_file(monkeypatch, tmp_path):
    monkeypatch.setattr(instruments, "peak_memory", lambda cell: Peak(cell.n * 10**6))
    advanced = []
    report = instruments.run(TINY, advance=lambda: advanced.append(1))
    assert len(advanced) == TINY.steps
    assert [row["case"] for row in report["results"]] == list(instruments.CASES)
    assert all(row["seconds"] > 0 < row["times_products"] for row in report["results"])
    table = instruments.table(report)
    assert list(table.columns[-1].cells) == ["300"] * len(instruments.CASES)
    instruments.save(report, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "instruments.json").read_text()) == report


@pytest.mark.parametrize("case", ["lln gap", "lln temperature"])
def test_memory_for_a_long_sequence(case):
    """P of 65,536 tokens would take 17 GB."""
    peak = peak_memory(Cell(case, 65536, heads=1, threads=2))
    if peak == Peak(None):
        pytest.skip("this system does not tell how much memory a process uses")
    assert peak.problem is None
    assert peak.bytes < 500e6


def test_command(monkeypatch, tmp_path):
    monkeypatch.setattr(instruments, "peak_memory", lambda cell: Peak(None, "time-out"))
    arguments = ["bench", "instruments", "--n", "80", "--threads", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "lln gap" in result.stdout
    assert "time-out" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["instruments.json"]
