"""Real copies of the Long Range Arena's data and of images below LLN_DATA."""

import os
from collections import Counter

import pytest

from lln.data import PixelTokens, open_dataset, open_images

pytestmark = pytest.mark.skipif(
    "LLN_DATA" not in os.environ, reason="LLN_DATA does not name a folder of real data sets"
)


@pytest.mark.parametrize(("split", "each"), [("train", 11_250), ("valid", 1_250), ("test", 12_500)])
def test_reviews(split, each):
    assert Counter(open_dataset("imdb", split=split)["label"]) == {0: each, 1: each}


@pytest.mark.parametrize(("split", "counts"), [("valid", (208, 208)), ("test", (270, 270))])
def test_pairs_of_papers(split, counts):
    texts = open_dataset("aan", split=split)
    assert Counter(texts["label"]) == dict(enumerate(counts))
    assert min(map(len, texts["text1"])) > 1000


def test_grey_cifar(tmp_path):
    train = open_images("cifar10_gray", cache=tmp_path)
    valid = open_images("cifar10_gray", split="valid", cache=tmp_path)
    assert (len(train), len(valid)) == (45_000, 5_000)
    together = Counter(train.labels.tolist()) + Counter(valid.labels.tolist())
    assert together == dict.fromkeys(range(10), 5000)
    assert abs(train.pixels.mean() / 255 - 0.4808) < 1e-3  # of all 50,000: 0.4808
    assert PixelTokens(train)[0]["input_ids"].shape == (1024,)


def test_dogs_vs_cats(tmp_path):
    images = open_images("dogs_vs_cats", size=32, split="valid", cache=tmp_path)
    assert Counter(images.labels.tolist()) == {0: 500, 1: 500}
    assert images[0]["pixel_values"].shape == (3, 32, 32)
