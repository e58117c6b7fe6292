"""Several processes compute what one does."""

import json

import pytest
import torch
from safetensors.torch import load_file

from lln.train import pretrain
from train.conftest import command, experiment, lines

PLAIN = ("hidden_dropout_prob=0", "steps=6", "measure_every=3")


def launch(config, tmp_path, *options):
    out = f"out={tmp_path / 'two'}"
    launcher = ("--nproc-per-node", 2, "--standalone", "-m", "lln.cli")
    words = (*launcher, "pretrain", config)
    with command(*words, *options, out, module="torch.distributed.run") as process:
        said = process.stdout.read()
    assert process.returncode == 0, said
    return tmp_path / "two/tiny/lln_diag-seed0"


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes_follow_the_loss_of_one(config, tmp_path):
    pretrain(experiment(config, *PLAIN))
    one, two = tmp_path / "runs/tiny/lln_diag-seed0", launch(config, tmp_path, *PLAIN)
    for kind in ("train", "eval"):
        ours, theirs = ([line["loss"] for line in lines(run, kind)] for run in (two, one))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
        assert len(ours) == {"train": 6, "eval": 2}[kind]
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (two, one))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert json.loads((two / "run.json").read_text())["status"] == "finished"
    assert [line["step"] for line in lines(two, "attention")] == [0, 3]
