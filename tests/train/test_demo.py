"""`lln demo`: two trainings, a table, a page, and how to load what was trained."""

from dataclasses import replace

import pytest
from transformers import AutoModelForMaskedLM
from typer.testing import CliRunner

import lln.models  # noqa: F401
from lln.cli.app import app
from lln.train import demo


@pytest.fixture
def quick(monkeypatch):
    training = replace(
        demo.EXPERIMENT.training,
        steps=4,
        batch_size=2,
        log_every=2,
        eval_every=4,
        save_every=4,
        measure_every=2,
    )
    data = replace(demo.EXPERIMENT.data, eval_examples=4)
    monkeypatch.setattr(demo, "EXPERIMENT", replace(demo.EXPERIMENT, training=training, data=data))


@pytest.mark.usefixtures("quick")
def test_demo(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    for part in ("softmax", "lln_diag", "frequencies alone", "3.084"):
        assert part in result.stdout
    folder = tmp_path / "runs" / "demo"
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    *_, line = result.stdout.rstrip().splitlines()
    path = line.partition("'")[2].rpartition("'")[0]
    model = AutoModelForMaskedLM.from_pretrained(path)
    assert model.config.mixer == "lln_diag"
    again = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "runs")])
    assert "is finished, nothing to do" in again.stderr


def test_blocks_are_not_the_whole_sequence():
    data, options = demo.EXPERIMENT.data, demo.EXPERIMENT.attention["lln_diag"]
    assert options["block_size"] < data.length
