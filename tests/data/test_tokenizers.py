"""Byte-level BPE and bytes, with RoBERTa's special tokens."""

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from lln.data import load_tokenizer, open_dataset, train_tokenizer

BYTES = load_tokenizer("bytes")
SPECIALS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}


@pytest.fixture(scope="module")
def novel():
    return open_dataset("bundled", split="valid")


@pytest.fixture(scope="module")
def trained(novel, tmp_path_factory):
    return train_tokenizer(novel, 600, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request):
    return (
        load_tokenizer("bytes") if request.param == "bytes" else request.getfixturevalue("trained")
    )


def test_special_tokens_are_robertas(tokenizer):
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIALS} == SPECIALS
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer("a").input_ids[:1] == [0]
    assert tokenizer.decode(tokenizer("a", "b").input_ids) == "<s>a</s></s>b</s>"


def test_sizes(trained):
    assert len(BYTES) == 256 + len(SPECIALS)
    assert len(trained) == 600


@given(text=st.text())
def test_every_text_comes_back(trained, text):
    for tokenizer in (BYTES, trained):
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(SPECIALS.values())
        assert tokenizer is trained or len(ids) == len(text.encode())


def test_bpe_is_shorter_than_bytes(trained, novel):
    text = novel["text"][1]
    assert len(trained(text).input_ids) < 0.5 * len(text.encode())


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(tokenizer)
    assert again.get_vocab() == tokenizer.get_vocab()
    text = "Call me <mask>, naïve — Ishmael."
    assert again(text, "and you").input_ids == tokenizer(text, "and you").input_ids
    assert again.mask_token_id == 4


def test_the_same_corpus_gives_the_same_tokenizer(trained, novel, tmp_path):
    again = train_tokenizer(novel, 600, cache=tmp_path)
    assert again.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    train_tokenizer(novel, 600, cache=tmp_path)
    assert file.stat().st_mtime_ns == written  # found, not trained again
    train_tokenizer(novel, 601, cache=tmp_path)
    train_tokenizer(Dataset.from_dict({"text": ["other"]}), 600, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_refusals(tmp_path, novel):
    with pytest.raises(ValueError, match=r"vocab_size 260 leaves no place .* at least 261"):
        train_tokenizer(novel, 260, cache=tmp_path)
    with pytest.raises(ValueError, match="is no tokenizer: expected bytes, listops, a folder"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="'hub:owner/name' cannot be loaded"):
        load_tokenizer("hub:owner/name")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
