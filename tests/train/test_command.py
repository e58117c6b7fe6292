"""`lln pretrain`, `finetune`, `vit` and `lra` on the command line."""

import re

import pytest
from typer.testing import CliRunner

from lln.cli.app import app
from lln.train.checkpoints import checkpoints


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_a_run_and_again(config, tmp_path):
    done = invoke("pretrain", config, "steps=3")
    assert done.exit_code == 0, done.output
    assert "runs/tiny/lln_diag-seed0: begins" in done.stderr
    assert re.search(r"lln_diag +0 +\d\.\d{4}", done.stdout)
    assert "wrote runs/tiny" in done.stdout
    again = invoke("pretrain", config, "steps=3")
    assert "runs/tiny/lln_diag-seed0 is finished, nothing to do" in again.stderr
    assert "lln_diag" in again.stdout
    other = invoke("pretrain", config, "steps=4")
    assert other.exit_code == 2
    assert "training.steps (3 there, 4 here)" in other.stderr
    anew = invoke("pretrain", config, "steps=4", "--restart")
    assert anew.exit_code == 0, anew.output
    assert checkpoints(tmp_path / "runs/tiny/lln_diag-seed0")[-1].name == "checkpoint-4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stepz=3"], "there is no key 'stepz'; valid: "),
        (["dataset=nothing"], "'nothing' is no data set"),
        (["out=/proc/nowhere"], "/proc/nowhere"),
        (["hidden_size=15", "mixer=softmax"], "dim must be"),
    ],
)
def test_errors_are_one_line(config, words, message):
    done = invoke("pretrain", config, *words)
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("command", ["pretrain", "finetune", "vit"])
def test_help_teaches(command):
    shown = " ".join(invoke(command, "--help").output.split())
    assert f"lln {command} experiments/{command}-smoke.toml" in shown
    assert "--restart" in shown


def test_the_arena_lists_its_tasks():
    shown = " ".join(invoke("lra", "--help").output.split())
    for task in ("listops", "text", "retrieval", "image", "pathfinder", "pathx", "table"):
        assert f" {task} " in shown
    assert "lln lra text experiments/lra-smoke.toml" in invoke("lra", "text", "--help").output
    done = invoke("lra", "listop", "experiments/lra-smoke.toml")
    assert "'listop' is not one of the commands listops, text" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_the_extra_the_message_names_it(config, monkeypatch):
    monkeypatch.setattr("lln.cli.train.find_spec", lambda name: None)
    for words in (["pretrain"], ["vit"], ["lra", "text"]):
        assert "pip install 'lln[train]'" in invoke(*words, config).stderr
