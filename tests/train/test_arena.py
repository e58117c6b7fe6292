"""The Long Range Arena: files for several tasks, and sequences of every kind."""

import gzip
import json
import os

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lln.data import load_tokenizer
from lln.models import EncoderForSequenceMatching
from lln.train import read_arena, train_lra
from lln.train.arena import PadSequences
from lln.train.classification import sample
from lln.train.inputs import ArenaTask
from lln.train.reading import runs
from train.conftest import lines

EXPERIMENT = """
name = "tiny"
mixer = ["softmax", "lln_diag"]

[data]
train_examples = 20
eval_examples = 8
test_examples = 6

[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32

[attention.lln_diag]
block_size = 8

[training]
steps = 4
batch_size = 4
learning_rate = 1e-2
log_every = 1
eval_every = 2
save_every = 4

[listops.data]
generator_seed = 0
shortest = 5
length = 30
[listops.attention.lln_diag]
combine = "learnable_ratio"

[retrieval]
mixer = "lln"
[retrieval.data]
length = 24

[pathfinder.data]
generator_seed = 0
[pathfinder.training]
steps = 2
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(EXPERIMENT)
    return path


def test_tables_of_a_task_are_laid_over_the_others(config):
    found = read_arena("listops", config, ["steps=7"])
    assert (found.data.length, found.data.train_examples, found.training.steps) == (30, 20, 7)
    options = [run.mixer.options for run in runs(found)]
    assert options == [{}, {"block_size": 8, "combine": "learnable_ratio"}]
    assert str(runs(found)[0].folder) == "runs/tiny/listops/softmax-seed0"
    other = read_arena("retrieval", config)
    assert (other.mixer, other.data.length, other.data.generator_seed) == (("lln",), 24, None)
    assert read_arena("listops", config, ["generator_seed=none"]).data.generator_seed is None


@pytest.mark.parametrize(
    ("task", "overrides", "message"),
    [
        ("lists", [], "'lists' is not one of the tasks listops, text, retrieval, image, pathf"),
        ("text", ["generator_seed=1"], "text has no generator_seed: only listops and pathfinder"),
        ("image", ["length=9"], "image has no length: only listops and text and retrieval have"),
        ("listops", ["task=text"], "task=text: name the task before the file"),
        ("listops", ["generator_seed=-1"], "generator_seed must not be negative"),
        ("listops", ["pooling=last"], "model.pooling must be one of first, mean"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(config, task, overrides, message):
    with pytest.raises(ValueError, match=message) as said:
        read_arena(task, config, overrides)
    assert "\n" not in str(said.value)


def test_a_misspelt_task_in_a_file(config):
    config.write_text(EXPERIMENT + "[listop.data]\nlength = 3\n")
    with pytest.raises(ValueError, match="there is no key 'listop'"):
        read_arena("listops", config)


def test_listops_from_beginning_to_end(config, tmp_path):
    records = train_lra(read_arena("listops", config))
    assert [record["label"] for record in records] == ["softmax", "lln_diag"]
    run = tmp_path / "runs/tiny/listops/lln_diag-seed0"
    record = json.loads((run / "run.json").read_text())
    assert (record["kind"], record["name"]) == ("lra", "tiny/listops")
    assert record["config"]["task"] == "listops"
    final = record["final"]
    assert final["accuracy"] == max(line["accuracy"] for line in lines(run, "eval"))
    assert final["test_accuracy"] * 6 == pytest.approx(round(final["test_accuracy"] * 6))
    assert final["test_loss"] > 0
    model = AutoModelForSequenceClassification.from_pretrained(run / "model")
    assert (model.config.pooling, model.config.num_labels) == ("mean", 10)
    tokens = AutoTokenizer.from_pretrained(run / "model")
    assert tokens("[MAX 2 9 ]", add_special_tokens=False)["input_ids"] == [6, 12, 19, 9]
    table = (run.parent / "summary.md").read_text()
    assert "test accuracy" in table
    assert "peak MiB" in table


def test_pictures_are_sequences_of_pixels(config):
    records = train_lra(read_arena("pathfinder", config, ["mixer=lln"]))
    assert 0 <= records[0]["final"]["test_accuracy"] <= 1


def test_pairs_go_through_one_encoder(config, tmp_path):
    (tmp_path / "aan").mkdir()
    for split in ("train", "dev", "test"):
        rows = [f"{i % 2}\ta{i}\tb{i}\ta paper {i}\t{'it' if i % 2 else 'that'}" for i in range(9)]
        with gzip.open(tmp_path / f"aan/new_aan_pairs.{split}.tsv.gz", "wt") as file:
            file.write("\n".join(rows) + "\n")
    train_lra(read_arena("retrieval", config, [f"root={tmp_path}"]))
    folder = tmp_path / "runs/tiny/retrieval/lln-seed0/model"
    model = EncoderForSequenceMatching.from_pretrained(folder)
    assert model.config.id2label == {0: "unrelated", 1: "cites"}


def test_padding_of_pairs():
    pad = PadSequences(load_tokenizer("bytes"))
    batch = pad(
        [
            {"input_ids": [7, 8, 9], "other_input_ids": [5], "labels": 1, "turn": 1},
            {"input_ids": [7], "other_input_ids": [5, 6], "labels": 0, "turn": 1},
        ]
    )
    assert batch["input_ids"].tolist() == [[7, 8, 9], [7, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["other_input_ids"].tolist() == [[5, 1], [5, 6]]
    assert batch["other_attention_mask"].tolist() == [[1, 0], [1, 1]]
    torch.testing.assert_close(batch["labels"], torch.tensor([1, 0]))
    assert "turn" not in batch


@pytest.mark.parametrize("order", ["in turn", "sorted"])
def test_fewer_examples_are_of_all_classes(order):
    labels = [0, 1] * 500 if order == "in turn" else [0] * 500 + [1] * 500
    for count in (100, 250, 500):
        places = sample(count, len(labels))
        assert len(set(places)) == count
        assert places == sample(count, len(labels))
        assert 0.35 < sum(labels[place] for place in places) / count < 0.65
    assert list(sample(0, 3)) == list(sample(5, 3)) == [0, 1, 2]


@pytest.mark.parametrize(("task", "origin"), [("text", "imdb"), ("listops", "generate_listops")])
def test_missing_data_are_said_in_one_line(config, monkeypatch, task, origin):
    monkeypatch.delenv("LLN_DATA", raising=False)
    none = ["generator_seed=none"] if task == "listops" else []
    with pytest.raises(ValueError, match="LLN_DATA") as said:
        train_lra(read_arena(task, config, none))
    assert origin in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("task", ["text", "retrieval", "image"])
def test_real_data(config, task):
    root = os.environ.get("LLN_DATA")
    if not root:
        pytest.skip("needs real data: set LLN_DATA")
    few = [f"root={root}", "mixer=lln", "steps=2", *(["length=64"] if task != "image" else [])]
    (record,) = train_lra(read_arena(task, config, few))
    assert record["final"]["test_loss"] > 0


def test_every_task_has_a_command():
    from typing import get_args

    from lln.cli.lra import TASKS
    from lln.report import arena

    assert tuple(TASKS) == get_args(ArenaTask)
    assert {*arena.TASKS, *arena.BEYOND} == set(TASKS)
