"""What a run leaves behind, and what its settings do."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from lln import memory
from lln.train import pretrain, session
from lln.train.order import TURN, Order
from lln.train.pretraining import MaskPasses
from lln.train.session import RunTrainer
from train.conftest import experiment, lines

PLAIN = ("hidden_dropout_prob=0", "steps=4")


def weights(folder):
    return load_file(folder / "tiny/lln_diag-seed0/model/model.safetensors")


@pytest.fixture(scope="module")
def plain(config, tmp_path_factory):
    """A run without any special setting."""
    out = tmp_path_factory.mktemp("plain")
    pretrain(experiment(config, *PLAIN, f"out={out}"))
    return out


def test_a_sweep_leaves_runs_and_a_summary(config, tmp_path):
    wanted = "mixer=lln_diag+matching=paper,gau"
    records = pretrain(
        experiment(config, wanted, "seed=0,1", "steps=3", "measure_every=2"), command="the command"
    )
    folder = tmp_path / "runs/tiny"
    assert [record["label"] for record in records[::2]] == ["lln_diag+matching=paper", "gau"]
    run = folder / "lln_diag+matching=paper-seed1"
    record = json.loads((run / "run.json").read_text())
    assert record == records[1]
    assert (record["kind"], record["name"], record["status"]) == ("pretrain", "tiny", "finished")
    assert record["mixer_options"] == {"block_size": 8, "matching": "paper"}
    assert record["config"]["training"]["steps"] == 3
    assert record["command"] == "the command"
    assert record["final"]["eval_loss"] == min(line["loss"] for line in lines(run, "eval"))
    assert record["final"]["peak_memory_bytes"] > 1e6
    assert record["parameters"] > 1000
    assert not list(run.glob("**/training_args.bin"))
    summary = json.loads((folder / "summary.json").read_text())
    assert len(summary["runs"]) == 4
    rows = (folder / "summary.md").read_text().splitlines()
    assert rows[0].startswith("| mixer | seed | loss | accuracy |")
    assert len(rows) == 6

    (train, *_), (evaluation,) = lines(run, "train"), lines(run, "eval")
    assert train["loss"] > 0
    assert set(train) >= {"grad_norm", "learning_rate", "seconds_per_step", "memory_bytes"}
    assert 0 <= evaluation["accuracy"] <= 1
    measured = lines(run, "attention")
    assert [line["step"] for line in measured] == [0, 2]
    assert len(measured[0]["rows"]) == 2 * 2
    assert all(row["alpha"] > 0 and row["entropy"] > 0 for row in measured[0]["rows"])
    # A gated unit has no attention matrix to measure, and is trained all the same.
    assert not lines(folder / "gau-seed0", "attention")

    model = AutoModelForMaskedLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert model(**tokenizer("the dog", return_tensors="pt")).logits.isfinite().all()


def test_tensorboard_shows_the_metrics(config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    pretrain(experiment(config, "steps=3", "measure_every=2"))
    run = tmp_path / "runs/tiny/lln_diag-seed0"
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    written = [(line["step"], line["loss"]) for line in lines(run, "train")]
    assert shown == [(step, pytest.approx(loss)) for step, loss in written]
    assert [event.step for event in events.Scalars("entropy/layer 1")] == [0, 2]


@pytest.mark.parametrize("setting", ["accumulation=2", "gradient_checkpointing=true", "workers=1"])
def test_what_saves_memory_or_time_changes_nothing(config, tmp_path, plain, setting):
    pretrain(experiment(config, *PLAIN, setting))
    torch.testing.assert_close(weights(tmp_path / "runs"), weights(plain))


def test_memory_is_kept_on_a_cpu(config, monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "keep", lambda: calls.append(1))
    monkeypatch.setattr(session, "_train", lambda *args: {})
    for on_cpu in (True, False):
        monkeypatch.setattr(session, "_on_cpu", lambda on_cpu=on_cpu: on_cpu)
        pretrain(experiment(config, *PLAIN))
        assert len(calls) == 1


def test_the_model_is_the_best_one_and_training_stops_without_a_new_best(config, tmp_path):
    wanted = experiment(
        config, "steps=40", "eval_every=1", "learning_rate=10", "clip=0", "patience=3"
    )
    (record,) = pretrain(wanted)
    run = tmp_path / "runs/tiny/lln_diag-seed0"
    losses = [line["loss"] for line in lines(run, "eval")]
    best = losses.index(min(losses))
    assert record["final"]["best_step"] == best + 1
    assert record["final"]["steps"] == len(losses) == best + 4 < 40
    assert (run / f"checkpoint-{len(losses)}").exists()
    # Interrupted just before it was closed, it takes no further step.
    (run / "run.json").write_text(json.dumps({**record, "status": "running"}))
    (again,) = pretrain(wanted)
    assert again["final"]["steps"] == len(losses)


def test_bf16_runs_and_fp16_needs_a_gpu(config, monkeypatch):
    (record,) = pretrain(experiment(config, *PLAIN, "precision=bf16"))
    assert math.isfinite(record["final"]["eval_loss"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="precision=fp16 needs a GPU"):
        pretrain(experiment(config, *PLAIN, "precision=fp16", "out=other"))


def test_the_loss_scale_is_logged(config, tmp_path, monkeypatch):
    accelerate = RunTrainer.create_accelerator_and_postprocess

    def scaled(self):
        accelerate(self)
        # As accelerate does for fp16 on a GPU.
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    monkeypatch.setattr(RunTrainer, "create_accelerator_and_postprocess", scaled)
    pretrain(experiment(config, *PLAIN))
    scales = [line["loss_scale"] for line in lines(tmp_path / "runs/tiny/lln_diag-seed0", "train")]
    assert scales == [8.0, 16.0, 16.0, 32.0]


def test_a_loss_that_is_not_finite_ends_the_run(config, tmp_path):
    with pytest.raises(ValueError, match="loss is not finite after step 2: lower learning_rate"):
        pretrain(
            experiment(
                config, "mixer=softmax", "learning_rate=1e30", "warmup=0", "steps=9", "eval_every=2"
            )
        )
    record = json.loads((tmp_path / "runs/tiny/softmax-seed0/run.json").read_text())
    assert record["status"] == "failed"


def test_a_batch_that_cannot_be_divided_is_refused(config):
    with pytest.raises(
        ValueError, match="batch_size=4 must be a multiple of the 1 processes times"
    ):
        pretrain(experiment(config, "accumulation=3"))


def test_every_pass_is_shuffled_and_masked_anew_and_evaluation_is_not():
    examples = [{"input_ids": torch.arange(10, 40) + i} for i in range(5)]
    order = Order(examples, length=15, seed=0)
    passes = [[int(order[i]["input_ids"][0]) for i in range(k, k + 5)] for k in (0, 5, 10)]
    assert all(sorted(one) == sorted(passes[0]) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert [order[i][TURN] for i in (4, 5, 14)] == [1, 2, 3]
    assert passes[0] != [
        int(Order(examples, length=5, seed=1)[i]["input_ids"][0]) for i in range(5)
    ]

    from lln.data import load_tokenizer

    mask = MaskPasses(load_tokenizer("bytes"), seed=3, share=0.5)
    same = examples[0]
    masked = mask([{**same, TURN: 1}, {**same, TURN: 2}, same, same])["labels"]
    assert not torch.equal(masked[0], masked[1])
    assert not torch.equal(masked[0], masked[2])
    assert torch.equal(masked[2], masked[3])
    # Masks do not depend on what else is in the batch.
    assert torch.equal(mask([{**same, TURN: 2}])["labels"][0], masked[1])
