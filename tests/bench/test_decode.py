import json

import pytest
from typer.testing import CliRunner

from lln.bench import decode
from lln.cli.app import app

TINY = decode.Setting(tokens=(20, 80), heads=2, head_dim=8, threads=1, repeats=1)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(decode, "AT_ONCE", 2)


def test_report_table_and_file(tmp_path):
    advanced = []
    report = decode.run(TINY, advance=lambda: advanced.append(1))
    assert len(advanced) == TINY.steps
    rows = {(row["attention"], row["tokens"]): row for row in report["results"]}
    assert list(rows) == [(a, n) for a in ("softmax", "lln", "lln_diag") for n in (20, 80)]
    for name in decode.RECURRENT:
        assert rows[name, 20]["bytes"] == rows[name, 80]["bytes"]
    assert rows["softmax", 80]["bytes"] == 2 * 2 * 8 * 80 * 4
    assert all(row["seconds_per_token"] > 0 for row in rows.values())
    assert all(rows[name, 20]["times_first"] == 1 for name, _ in rows)
    assert len(list(decode.table(report).columns[0].cells)) == len(rows)
    decode.save(report, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "decode.json").read_text()) == json.loads(
        json.dumps(report)
    )


def test_command(tmp_path):
    arguments = ["bench", "decode", "--tokens", "10,20", "--heads", "1", "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "lln_diag" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["decode.json"]
