"""Classification of sentences, from scratch and from a pre-trained run."""

import gzip
import json
import os

import pytest
from transformers import AutoModelForSequenceClassification

from lln.train import Finetuning, finetune, pretrain, read
from train.conftest import experiment, lines

TASK = """
name = "sentences"
mixer = "lln_diag"

[data]
task = "qqp"
root = "{root}"
length = 32
tokenizer = "bytes"

[attention.lln_diag]
block_size = 8

[training]
epochs = 2
batch_size = 4
learning_rate = 1e-2
log_every = 1
eval_every = 5
save_every = 5
"""
SMALL = ("hidden_size=16", "num_hidden_layers=2", "num_attention_heads=2", "intermediate_size=32")


@pytest.fixture
def task(tmp_path):
    (tmp_path / "glue").mkdir()
    for split, number in (("train", 18), ("dev", 10)):
        rows = [
            f"is it {i}?\t{'is it' if i % 2 else 'what is'} {i}?\t{i % 2}" for i in range(number)
        ]
        with gzip.open(tmp_path / f"glue/qqp_{split}.tsv.gz", "wt") as file:
            file.write("\n".join(["question1\tquestion2\tlabel", *rows]) + "\n")
    path = tmp_path / "sentences.toml"
    path.write_text(TASK.format(root=tmp_path.as_posix()))
    return path


def test_from_scratch(task, tmp_path):
    (record,) = finetune(read(Finetuning, task, SMALL))
    assert record["final"]["steps"] == 9  # 2 · 18 / 4
    run = tmp_path / "runs/sentences/lln_diag-seed0"
    evaluations = lines(run, "eval")
    assert [line["step"] for line in evaluations] == [5, 9]
    best = max(line["accuracy"] for line in evaluations)
    assert record["final"]["accuracy"] == best
    assert 0 <= record["final"]["f1"] <= 1
    model = AutoModelForSequenceClassification.from_pretrained(run / "model")
    assert model.config.id2label == {0: "not_duplicate", 1: "duplicate"}


def test_from_the_runs_of_a_pretraining(config, task, tmp_path):
    pretrain(experiment(config, "mixer=softmax,lln_diag", "steps=3"))
    wanted = ("pretrained=runs/tiny", "mixer=softmax,lln_diag")
    records = finetune(read(Finetuning, task, wanted))
    assert [record["label"] for record in records] == ["softmax", "lln_diag"]
    one = "pretrained=runs/tiny/lln_diag-seed0/model"
    (record,) = finetune(read(Finetuning, task, [one, "seed=7"]))
    assert record["seed"] == 7
    with pytest.raises(ValueError, match=r"mixer \('lln_diag' there, 'softmax' here\)"):
        finetune(read(Finetuning, task, [one, "mixer=softmax", "name=other"]))
    with pytest.raises(ValueError, match=r"hidden_size \(16 there, 24 here\)"):
        finetune(read(Finetuning, task, [one, "hidden_size=24", "name=other"]))
    with pytest.raises(ValueError, match="length=64 is more than the 32 tokens"):
        finetune(read(Finetuning, task, [one, "length=64", "name=other"]))
    with pytest.raises(ValueError, match=r"no model for lln_diag-seed3: .*found lln_diag-seed0"):
        finetune(read(Finetuning, task, ["pretrained=runs/tiny", "seed=3"]))


def test_a_run_that_is_not_of_lln_is_refused(task, tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="holds a bert model, not one of lln pretrain"):
        finetune(read(Finetuning, task, [f"pretrained={tmp_path / 'bert'}"]))


@pytest.mark.parametrize("name", ["qnli", "mnli"])
def test_real_tasks(task, name):
    root = os.environ.get("LLN_DATA")
    if not root:
        pytest.skip("needs real data: set LLN_DATA")
    few = ("train_examples=64", "eval_examples=32", "epochs=0.25", "batch_size=8")
    wanted = (*SMALL, *few, f"task={name}", f"root={root}", "mixer=softmax,lln")
    for record in finetune(read(Finetuning, task, wanted)):
        assert 0 < record["final"]["accuracy"] < 1
