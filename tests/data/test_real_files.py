"""Real copies below LLN_DATA, by the counts that are published with them."""

import os
from collections import Counter

import pytest

from lln.data import TASKS, load_tokenizer, open_dataset, pack

pytestmark = pytest.mark.skipif(
    "LLN_DATA" not in os.environ, reason="LLN_DATA does not name a folder of real data sets"
)


@pytest.mark.parametrize(
    ("task", "split", "counts"),
    [
        ("sst2", "train", (29_780, 37_569)),
        ("sst2", "valid", (428, 444)),
        ("qnli", "train", (9_768, 9_707)),
        ("qnli", "valid", (2_702, 2_761)),
        ("mnli", "train", (6_541, 6_543, 6_556)),
        ("mnli", "valid", (3_479, 3_123, 3_213)),
        ("qqp", "train", (11_097, 8_394)),
        ("qqp", "valid", (5_000, 5_000)),
    ],
)
def test_glue(task, split, counts):
    texts = open_dataset(task, split=split)
    assert texts.column_names == [*TASKS[task].sentences, "label"]
    assert Counter(texts["label"]) == dict(enumerate(counts))


@pytest.mark.parametrize(
    ("name", "split", "lines", "words"),
    [
        ("wikitext2", "train", 36_718, 2_051_910),
        ("wikitext2", "valid", 3_760, 213_886),
        ("wikitext2", "test", 4_358, 241_211),
        ("wikitext103", "valid", 3_760, 213_886),
        ("wikitext103", "test", 4_358, 241_211),
    ],
)
def test_wikitext(name, split, lines, words):
    texts = open_dataset(name, split=split)["text"]
    assert len(texts) == lines
    assert sum(len(line.split()) for line in texts) == words


def test_wikipedia():
    texts = open_dataset("wikipedia", split="valid")["text"]
    assert sum(line.startswith("= ") and line.endswith(" =") for line in texts) == 78
    # As published, words end at ASCII white space alone, which the split of bytes knows.
    assert sum(len(line.encode().split()) for line in texts) == 195_910


def test_bytes_of_wikitext_are_all_there(tmp_path):
    """Stripped lines and a </s> for each are what the blocks hold, and little is padding."""
    texts = open_dataset("wikitext2", split="valid")
    blocks = pack(texts, load_tokenizer("bytes"), 256, cache=tmp_path)
    lines = [line.strip() for line in texts["text"]]
    ids = blocks.ids[blocks.ids > 4]
    assert len(ids) == sum(len(line.encode()) for line in lines)
    assert blocks.fill > 0.98
