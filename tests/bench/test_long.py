import json

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from lln.bench import cases, long
from lln.bench.alone import Peak, Spent
from lln.cli.app import app

U = 512 * 4  # bytes per token of one of q, k, v, with 8 heads of 64 in float32


@pytest.mark.parametrize("heads_at_once", [1, 2, 4])
def test_heads_one_after_the_other_are_the_heads_together(heads_at_once):
    cell = long.LongCell("lln_diag", 70, heads=4, head_dim=8, heads_at_once=heads_at_once)
    gradients = cell.prepare()()
    assert len(gradients) == 3 * 4 // heads_at_once
    q, k, v = (torch.cat(parts, 1) for parts in zip(*cell_inputs(cell), strict=True))
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = cases.find("lln_diag").make(4, 8, 70)(q, k, v)
    expected = torch.autograd.grad(out, (q, k, v), out.detach())
    found = [torch.cat(gradients[place::3], 1) for place in range(3)]
    assert_close(found, list(expected), rtol=1e-4, atol=1e-5)


def cell_inputs(cell):
    groups = range(cell.heads // cell.heads_at_once)
    return [cell._group(cell.n, torch.float32, seed) for seed in groups]


def test_memory_is_bounded():
    """q, k, v and their gradients are 6 U; one of 8 heads at a time adds a fraction of that."""
    report = long.run(long.Setting(n=(16384,), threads=1, gate=False))
    (row,) = report["results"]
    assert row["problem"] is None
    assert row["seconds"] > 0
    if row["bytes"] is None:
        pytest.skip("this system does not tell a process its peak memory")
    per_token = row["bytes"] / 16384
    assert 6 * U <= per_token < 7.4 * U
    assert per_token * 1_048_576 < 16e9


@pytest.fixture
def quick(monkeypatch):
    def peak(cell, timeout):
        return Peak(None, "out of memory") if cell.n > 100 else Peak(1, total=cell.n * 10**6)

    monkeypatch.setattr(long, "peak_memory", peak)
    monkeypatch.setattr(
        long,
        "time_in_turns",
        lambda cells, **_: {name: Spent(cell.n / 10, calls=1) for name, cell in cells.items()},
    )


def test_report_tables_and_files(quick, tmp_path):
    setting = long.Setting(n=(20, 80, 320), gate=True)
    advanced = []
    report = long.run(setting, advance=lambda: advanced.append(1))
    assert len(advanced) == setting.steps
    assert [row["problem"] for row in report["results"]] == [None, None, "out of memory"]
    assert report["exponents"]["lln_diag"] == pytest.approx({"seconds": 1, "bytes": 1})
    (grid,) = long.tables(report)
    assert grid.rows[1] == ["lln_diag", "80", "8.0", "100,000.00", "0.08", "1,000,000"]
    assert grid.rows[2] == ["lln_diag", "320", "out of memory", "–", "–", "–"]
    long.save(report, tmp_path)
    assert json.loads((tmp_path / "long.json").read_text()) == json.loads(json.dumps(report))
    assert "out of memory" in (tmp_path / "long.md").read_text()


def test_command(quick, tmp_path):
    arguments = ["bench", "long", "--n", "20,80", "--no-gate", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "H=8, 1 at a time" in " ".join(result.stdout.split())
    assert {path.name for path in tmp_path.iterdir()} == {"long.json", "long.md"}
