"""The command `lln report`, and what it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lln.cli.app import app
from report.run_folders import write_run


def run(*args):
    return CliRunner().invoke(app, ["report", *map(str, args)])


@pytest.fixture
def experiment(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"softmax-seed{seed}", "softmax", seed=seed)
    write_run(tmp_path / "runs" / "elu-seed0", "elu", status="running")
    return tmp_path / "runs"


def test_an_experiment(experiment):
    result = run(experiment)
    assert result.exit_code == 0, result.output
    assert "softmax" in result.stdout
    assert f"wrote {experiment / 'report.html'}" in result.stdout.replace("\n", "")
    assert result.stderr == (
        "note: elu · seed 0: still running, or interrupted; the last entry is of step 400\n"
    )
    page = (experiment / "report.html").read_text(encoding="utf-8")
    assert "<h1>wikitext2-cpu</h1>" in page
    assert {path.name for path in experiment.iterdir() if path.is_file()} == {"report.html"}


def test_one_run(experiment):
    result = run(experiment / "softmax-seed1")
    assert result.exit_code == 0, result.output
    assert "1 run of pre-training" in (experiment / "softmax-seed1" / "report.html").read_text()


def test_several_runs_are_written_here(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(experiment / "softmax-seed1", experiment / "elu-seed0")
    assert result.exit_code == 0, result.output
    assert Path("report.html").exists()


def test_another_place(experiment, tmp_path):
    out = tmp_path / "new" / "page.html"
    assert run(experiment, "--out", out).exit_code == 0
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    assert not (experiment / "report.html").exists()


def refusal(*args):
    result = run(*args)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_refusals(experiment, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert "there is no folder" in refusal(tmp_path / "none")
    assert "holds no run" in refusal(experiment, tmp_path / "empty")
    (experiment / "elu-seed0" / "run.json").write_text('{"na')
    assert "cannot read" in refusal(experiment)
    assert "cannot write '--out'" in refusal(
        experiment / "softmax-seed0", "--out", experiment / "elu-seed0" / "run.json" / "page.html"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'lln[report]'" in refusal(experiment)
