"""Nothing is lost: whatever interrupts a training, the same command ends where it would have."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from lln import files
from lln.train import checkpoints, pretrain
from lln.train.checkpoints import CheckpointWarning
from lln.train.trainer import NotSaved
from train.conftest import command, experiment, lines


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that was not interrupted."""
    out = tmp_path_factory.mktemp("whole")
    pretrain(experiment(config, f"out={out}"))
    return out / "tiny/lln_diag-seed0"


@pytest.fixture
def run(tmp_path):
    """Where the tests train."""
    return tmp_path / "runs/tiny/lln_diag-seed0"


@pytest.fixture
def almost(run, whole):
    """A run that was interrupted after its last checkpoint."""
    shutil.copytree(whole, run)
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "status": "running"}))
    return run


def assert_same_end(run, whole):
    for file in ("model/model.safetensors", "checkpoint-12/model.safetensors"):
        ours, theirs = load_file(run / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), (file, name)
    for kind in ("train", "eval"):
        ours, theirs = (
            [(line["step"], line["loss"]) for line in lines(folder, kind)]
            for folder in (run, whole)
        )
        assert ours == theirs
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def interrupt(config, run, step):
    """Kills the command without warning, once it has logged `step`."""
    metrics = run / "metrics.jsonl"
    with command("pretrain", config) as process:
        while not (metrics.exists() and f'"step": {step}, ' in metrics.read_text()):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_a_killed_training_ends_with_the_same_bits(config, run, whole):
    step = random.randint(4, 10)
    interrupt(config, run, step)
    assert json.loads((run / "run.json").read_text())["status"] == "running", step
    assert checkpoints.last_good(run) is not None
    pretrain(experiment(config))
    assert_same_end(run, whole)


@pytest.mark.parametrize("file", ["optimizer.pt", "files.json"])
def test_an_unreadable_checkpoint_falls_back_to_the_one_before(config, almost, whole, file):
    last = almost / "checkpoint-12" / file
    last.write_bytes(last.read_bytes()[:100])
    with pytest.warns(CheckpointWarning, match=r"checkpoint-12 cannot be used.*checkpoint-9"):
        pretrain(experiment(config))
    assert_same_end(almost, whole)


def test_without_a_readable_checkpoint_it_begins_anew(config, almost, whole):
    for folder in checkpoints.checkpoints(almost):
        (folder / "model.safetensors").unlink()
    with (almost / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "train", "step": 13, "lo')
    with pytest.warns(CheckpointWarning, match=r"cannot be used \(model.safetensors is missing\)"):
        pretrain(experiment(config))
    assert_same_end(almost, whole)


def test_a_run_that_was_killed_after_its_last_step_only_has_to_be_closed(config, almost, whole):
    pretrain(experiment(config))
    assert_same_end(almost, whole)


def test_a_full_disk_is_said_in_one_line_and_costs_nothing_that_was_saved(
    config, run, whole, monkeypatch
):
    save = torch.save

    def fill(content, file, *args, **options):
        if "checkpoint-6" in str(file) and "optimizer" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(content, file, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        with pytest.raises(NotSaved, match=r"cannot write checkpoint-6 to .*No space left") as said:
            pretrain(experiment(config))
    assert "\n" not in str(said.value)
    assert [path.name for path in checkpoints.checkpoints(run)] == ["checkpoint-3"]
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    pretrain(experiment(config))
    assert_same_end(run, whole)


def test_files_that_the_system_refuses_to_write(config, run):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(NotSaved, match="MB are free"):
            pretrain(experiment(config))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not checkpoints.checkpoints(run)


def test_a_finished_run_is_left_alone_and_another_configuration_refused(config, run, whole):
    shutil.copytree(whole, run)
    before = (run / "run.json").stat().st_mtime_ns
    (record,) = pretrain(experiment(config))
    assert record["status"] == "finished"
    assert (run / "run.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"training.steps \(12 there, 4 here\).*--restart"):
        pretrain(experiment(config, "steps=4"))
    (record,) = pretrain(experiment(config, "steps=4"), restart=True)
    assert record["final"]["steps"] == 4
    assert [path.name for path in checkpoints.checkpoints(run)] == ["checkpoint-3", "checkpoint-4"]


def test_two_processes_do_not_train_one_run(config, run, whole):
    shutil.copytree(whole, run)
    with files.reserved(run), pytest.raises(ValueError, match="trained by another process: wait"):
        pretrain(experiment(config), restart=True)
    assert (run / "run.json").exists()
