"""Training on images: crops by seed and pass, resuming to the bit, a test of the best model."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification

from lln.data import CropsAndFlips, open_images
from lln.train import Vision, checkpoints, read, train_vit
from lln.train.order import Order
from train.conftest import lines

EXPERIMENT = """
name = "squares"
mixer = "lln_diag"

[data]
dataset = "{folder}"
size = 8
margin = 2

[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 32
patch_size = 4

[attention.lln_diag]
block_size = 2

[training]
steps = 9
batch_size = 4
learning_rate = 1e-2
log_every = 1
eval_every = 3
save_every = 3
measure_every = 3
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """An experiment on bright and dark squares: 16 for training, 2 and 2 for the rest."""
    folder = tmp_path_factory.mktemp("squares")
    draw = np.random.default_rng(0)
    for name, level in (("bright", 150), ("dark", 0)):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = draw.integers(level, level + 100, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")
    path = folder / "squares.toml"
    path.write_text(EXPERIMENT.format(folder=(folder / "images").as_posix()))
    return path


@pytest.fixture(scope="module")
def whole(drawn, tmp_path_factory):
    """A run that was not interrupted."""
    out = tmp_path_factory.mktemp("whole")
    train_vit(read(Vision, drawn, [f"out={out}"]))
    return out / "squares/lln_diag-seed0"


def test_the_best_model_is_tested_and_can_be_loaded(drawn, whole):
    record = json.loads((whole / "run.json").read_text())
    assert (record["kind"], record["status"]) == ("vit", "finished")
    final, best = record["final"], lines(whole, "eval")[-1]
    assert final["best_step"] in (3, 6, 9)
    assert best["accuracy"] <= final["accuracy"]
    model = AutoModelForImageClassification.from_pretrained(whole / "model")
    assert model.config.id2label == {0: "bright", 1: "dark"}
    assert (model.config.image_size, model.config.patch_size) == (8, 4)
    test = open_images(str(drawn.parent / "images"), size=8, split="test")
    pixels = torch.stack([test[place]["pixel_values"] for place in range(len(test))])
    labels = torch.stack([test[place]["labels"] for place in range(len(test))])
    with torch.no_grad():
        logits = model(pixels).logits
    right = (logits.argmax(1) == labels).double().mean()
    torch.testing.assert_close(final["test_accuracy"], right.item())
    loss = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(final["test_loss"], loss.item(), atol=1e-6, rtol=1e-5)


def test_measurements_of_images_are_recorded(whole):
    rows = lines(whole, "attention")[0]["rows"]
    assert {"alpha", "beta", "entropy"} <= rows[0].keys()
    assert {(row["layer"], row["head"]) for row in rows} == {(a, b) for a in (0, 1) for b in (0, 1)}


class Killed(Exception):
    """Ends a training at once."""


def test_an_interrupted_training_sees_the_same_crops(drawn, whole, tmp_path, monkeypatch):
    run = tmp_path / "runs/squares/lln_diag-seed0"
    seen, take = [], CropsAndFlips.in_epoch

    def interrupted(images, place, epoch):
        seen.append(epoch)
        if len(seen) == 4 * 7:
            raise Killed
        return take(images, place, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(CropsAndFlips, "in_epoch", interrupted)
        with pytest.raises(Killed):
            train_vit(read(Vision, drawn))
    assert set(seen) == {1, 2}  # 16 images a pass
    assert checkpoints.last_good(run) is not None
    train_vit(read(Vision, drawn))
    ours, theirs = (load_file(folder / "model/model.safetensors") for folder in (run, whole))
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    for kind in ("train", "eval"):
        ours, theirs = (
            [(line["step"], line["loss"]) for line in lines(of, kind)] for of in (run, whole)
        )
        assert ours == theirs
    finals = [json.loads((of / "run.json").read_text())["final"] for of in (run, whole)]
    assert finals[0]["test_loss"] == finals[1]["test_loss"]


def test_crops_follow_seed_and_pass_alone(drawn):
    images = open_images(str(drawn.parent / "images"), size=8, split="train")

    def order(seed):
        return Order(CropsAndFlips(images, seed=seed, margin=2), length=64, seed=seed)

    one, again, other = order(0), order(0), order(1)
    places = [40, 3, 40]  # whatever was read before
    for place in places:
        assert torch.equal(one[place]["pixel_values"], again[place]["pixel_values"])
    assert not torch.equal(one[3]["pixel_values"], other[3]["pixel_values"])
    passes = [
        {tuple(one[16 * turn + i]["pixel_values"].flatten().tolist()) for i in range(16)}
        for turn in (0, 1)
    ]
    assert passes[0] != passes[1]


def test_one_line_where_data_are_missing(drawn, monkeypatch, tmp_path):
    monkeypatch.delenv("LLN_DATA", raising=False)
    with pytest.raises(ValueError, match=r"LLN_DATA.*kaggle") as said:
        train_vit(read(Vision, drawn, ["dataset=dogs_vs_cats"]))
    assert "\n" not in str(said.value)
    with pytest.raises(ValueError, match="is no set of images"):
        train_vit(read(Vision, drawn, ["dataset=nothing"]))
    with pytest.raises(ValueError, match="multiple of patch_size"):
        train_vit(read(Vision, drawn, ["patch_size=3"]))


def test_real_images(drawn):
    root = os.environ.get("LLN_DATA")
    if not root:
        pytest.skip("needs real data: set LLN_DATA")
    few = ("dataset=dogs_vs_cats", f"root={root}", "size=16", "eval_examples=20", "steps=3")
    (record,) = train_vit(read(Vision, drawn, [*few, "test_examples=20", "mixer=softmax"]))
    assert 0 < record["final"]["test_accuracy"] < 1
