"""Blocks of full lines: nothing lost, in order, in a file that is whole or absent."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from lln.data import load_tokenizer, pack, unigram_entropy
from lln.data.lines import lines_of
from lln.data.packing import packed

END = 2
LINES = st.lists(st.lists(st.integers(5, 260), max_size=30), max_size=30)


def corpus(*rows):
    return Dataset.from_dict({"text": list(rows)})


@given(lines=LINES, size=st.integers(1, 20))
def test_nothing_is_lost_and_order_is_kept(lines, size):
    blocks = list(packed(lines, size, END))
    kept = [token for block in blocks for token in block]
    assert [token for token in kept if token != END] == [token for line in lines for token in line]
    assert all(0 < len(block) <= size for block in blocks)
    assert all(any(token != END for token in block) for block in blocks)


@given(lengths=st.lists(st.integers(1, 30), max_size=30), size=st.integers(1, 20))
def test_lines_that_fit_are_whole_and_blocks_are_full(lengths, size):
    tokens = itertools.count(END + 1)  # each token once, so that it tells where it went
    lines = [list(itertools.islice(tokens, length)) for length in lengths]
    blocks = list(packed(lines, size, END))
    line_of = {line[0]: [*line, END] for line in lines}
    for block in blocks:
        for place, token in enumerate(block):
            line = line_of.get(token, [])
            if len(line) <= size:
                assert block[place : place + len(line)] == line
    for block, after in itertools.pairwise(blocks):
        first = line_of.get(after[0], [])
        assert len(block) == size or size - len(block) < len(first) <= size


def test_what_blocks_look_like(tmp_path):
    tokenizer = load_tokenizer("bytes")
    texts = corpus("", " One. ", "Two.", "", "", "A document\nof two lines", "Six.", "")
    blocks = pack(texts, tokenizer, 16, cache=tmp_path)
    assert [tokenizer.decode(block["input_ids"]) for block in blocks] == [
        "<s>One.</s>Two.</s></s>" + "<pad>" * 4,
        "<s>A document</s>" + "<pad>" * 4,
        "<s>of two lines</s></s>" + "<pad>",
        "<s>Six.</s>" + "<pad>" * 10,
    ]
    assert blocks[0]["attention_mask"].tolist() == [1] * 12 + [0] * 4
    assert (blocks.tokens, blocks.fill) == (45, 45 / 64)


def test_long_lines_are_split(tmp_path):
    tokenizer = load_tokenizer("bytes")
    blocks = pack(corpus("ab", "0123456789"), tokenizer, 6, cache=tmp_path)
    assert [tokenizer.decode(block["input_ids"]) for block in blocks] == [
        "<s>ab</s>01",
        "<s>23456",
        "<s>789</s><pad>",
    ]


def test_text_that_spells_a_special_token_is_text(tmp_path):
    tokenizer = load_tokenizer("bytes")
    (block,) = pack(corpus("a<mask></s><pad>"), tokenizer, 32, cache=tmp_path)
    ids = block["input_ids"]
    assert (ids == tokenizer.mask_token_id).sum() == 0
    assert (ids == tokenizer.eos_token_id).sum() == 1
    assert block["attention_mask"].sum() == 2 + len("a<mask></s><pad>")


@given(rows=st.lists(st.text(alphabet="ab \n", max_size=8), min_size=1, max_size=8))
def test_lines_of_any_rows(rows):
    lines = list(lines_of(corpus(*rows)))
    words = [line.strip() for row in rows for line in row.split("\n") if line.strip()]
    assert [line for line in lines if line] == words
    assert "" not in lines[:1] + lines[-1:]
    assert ("", "") not in itertools.pairwise(lines)


def test_the_cache_is_keyed_by_content(tmp_path, monkeypatch):
    tokenizer, texts = load_tokenizer("bytes"), corpus("some", "text")
    first = pack(texts, tokenizer, 8, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    tokenizer(
        "another", truncation=True, max_length=4
    )  # what a tokenizer was used for is no matter
    again = pack(corpus("some", "text"), tokenizer, 8, cache=tmp_path)
    assert file.stat().st_mtime_ns == written
    torch.testing.assert_close(again[0]["input_ids"], first[0]["input_ids"])
    assert isinstance(again.ids, np.memmap)
    pack(corpus("some", "texts"), tokenizer, 8, cache=tmp_path)
    pack(texts, tokenizer, 9, cache=tmp_path)
    tokenizer.add_tokens(["some"])
    pack(texts, tokenizer, 8, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    pack(texts, tokenizer, 8)
    assert [file.suffix for file in (tmp_path / "home/lln").iterdir()] == [".bin"]


def test_a_large_vocabulary(tmp_path):
    tokenizer = load_tokenizer("bytes")
    tokenizer.add_tokens([f"#{number}#" for number in range(70_000)])
    (block,) = pack(corpus("#69999#"), tokenizer, 4, cache=tmp_path)
    assert block["input_ids"].tolist() == [0, 261 + 69_999, 2, 1]


class Interrupted:
    """A tokenizer that does something else first."""

    def __init__(self, first):
        self.first, self.tokenizer = first, load_tokenizer("bytes")

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __len__(self):
        return len(self.tokenizer)

    def __call__(self, *lines, **options):
        self.first()
        return self.tokenizer(*lines, **options)


def test_processes_that_race_agree(tmp_path, monkeypatch):
    """Another process packs the same text while this one is at it."""
    texts, found = corpus("some text", "and more"), []

    def other():
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: -1)
            found.append(pack(texts, load_tokenizer("bytes"), 8, cache=tmp_path))

    found.append(pack(texts, Interrupted(other), 8, cache=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1  # and nothing unfinished
    one, two = (blocks.ids.tolist() for blocks in found)
    assert one == two


def test_a_failure_leaves_nothing(tmp_path):
    def fill_the_disk():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        pack(corpus("text"), Interrupted(fill_the_disk), 8, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_blocks_pickle_by_their_file(tmp_path):
    blocks = pack(corpus("text " * 500), load_tokenizer("bytes"), 8, cache=tmp_path)
    data = pickle.dumps(blocks)
    assert len(data) < 500
    torch.testing.assert_close(pickle.loads(data)[3], blocks[3])


def test_refusals(tmp_path):
    tokenizer = load_tokenizer("bytes")
    with pytest.raises(ValueError, match="length 1 leaves no place"):
        pack(corpus("a"), tokenizer, 1, cache=tmp_path)
    without = load_tokenizer("bytes")
    without.bos_token = None
    with pytest.raises(ValueError, match="needs a bos_token"):
        pack(corpus("a"), without, 8, cache=tmp_path)
    with pytest.raises(ValueError, match="no text to pack"):
        pack(corpus("", " \n"), tokenizer, 8, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="needs the column 'text': this has body"):
        pack(Dataset.from_dict({"body": ["a"]}), tokenizer, 8, cache=tmp_path)
    pack(corpus("a"), tokenizer, 8, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ValueError, match="does not hold blocks of 8 tokens: delete it"):
        pack(corpus("a"), tokenizer, 8, cache=tmp_path)


def test_unigram_entropy(tmp_path):
    tokenizer = load_tokenizer("bytes")
    blocks = pack(corpus("aabc", "", "aabc"), tokenizer, 8, cache=tmp_path)
    nats, bits = unigram_entropy(blocks, tokenizer)
    assert bits == pytest.approx(1.5)  # a half, a quarter and a quarter; no special token counts
    assert nats == pytest.approx(1.5 * math.log(2))
