"""Corpora by name, path and format."""

import gzip
import importlib
import json
import lzma
from itertools import chain

import pytest
from datasets import Dataset

import lln.data
from lln.data import open_dataset

LINES = ["", " = Title = ", "", "Once — and\u2028again .", "", "The end ."]
TEXT = "\n".join(LINES) + "\n"
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def put(path, content, compression=""):
    path = path.with_name(path.name + compression)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACK[compression](content.encode()))
    return path


def put_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict({"text": rows}).to_parquet(path)


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize(
    "path",
    [
        "wikitext/wikitext2_{}.txt",
        "wikitext-2-raw/wiki.{}.raw",
        "wikitext/wikitext-2/wiki.{}.tokens",
    ],
)
def test_wikitext_in_lines(tmp_path, path, compression):
    for split in ("train", "valid", "test"):
        put(tmp_path / path.format(split), TEXT + split + "\n", compression)
    for split in ("train", "valid", "test"):
        rows = open_dataset("wikitext2", root=tmp_path, split=split)["text"]
        assert list(rows) == [*LINES, split]


def test_wikitext_in_parquet_as_on_the_hub(tmp_path):
    folder = tmp_path / "wikitext-103-raw-v1"
    for part, line in enumerate(["one\n", "two\n"]):
        put_parquet(folder / f"train-0000{part}-of-00002.parquet", [line])
    put_parquet(folder / "validation-00000-of-00001.parquet", ["three\n"])
    assert list(open_dataset("wikitext103", root=tmp_path)["text"]) == ["one\n", "two\n"]
    assert list(open_dataset("wikitext103", root=tmp_path, split="valid")["text"]) == ["three\n"]


def test_the_root_is_in_the_environment(tmp_path, monkeypatch):
    put(tmp_path / "wikipedia_en/train.txt", TEXT, ".xz")
    monkeypatch.setenv("LLN_DATA", str(tmp_path))
    assert list(open_dataset("wikipedia")["text"]) == LINES
    monkeypatch.delenv("LLN_DATA")
    with pytest.raises(ValueError, match=r"'wikipedia' needs a folder .* set LLN_DATA"):
        open_dataset("wikipedia")


def test_a_folder_of_ones_own(tmp_path):
    put(tmp_path / "train.txt", TEXT)
    put(tmp_path / "dev.jsonl", json.dumps({"text": "a\nb", "id": 1}) + "\n\n", ".gz")
    put_parquet(tmp_path / "test.parquet", ["c"])
    assert list(open_dataset(str(tmp_path))["text"]) == LINES
    assert list(open_dataset(str(tmp_path), split="valid")["text"]) == ["a\nb"]
    assert list(open_dataset(str(tmp_path), split="test")["text"]) == ["c"]


@pytest.mark.parametrize("compression", PACK)
def test_one_file_has_all_splits(tmp_path, compression):
    rows = [f"line {number}" for number in range(40)]
    file = put(tmp_path / "corpus.txt", "\n".join(rows), compression)
    parts = [list(open_dataset(str(file), split=s)["text"]) for s in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [36, 2, 2]
    assert list(chain(*parts)) == rows


def test_a_file_too_short_to_split(tmp_path):
    file = put(tmp_path / "corpus.txt", "one\ntwo\n")
    with pytest.raises(ValueError, match="2 rows, which gives no split 'valid': give a folder"):
        open_dataset(str(file), split="valid")


def test_the_bundled_corpus():
    splits = {s: open_dataset("bundled", split=s)["text"] for s in ("train", "valid", "test")}
    chapters = {
        split: [int(row.split(".")[0][8:]) for row in rows if row.startswith("CHAPTER ")]
        for split, rows in splits.items()
    }
    assert chapters["valid"] == list(range(10, 131, 20))
    assert chapters["test"] == list(range(20, 121, 20))
    assert sorted(chain(*chapters.values())) == list(range(1, 136))
    assert splits["train"][1].startswith("Call me Ishmael. Some years ago—never mind how long")
    assert 1_000_000 < sum(len(row.encode()) for row in splits["train"]) < 1_200_000


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("wikitext2", "train", r"no train file .*wikitext2_<split>.txt.*Salesforce/wikitext"),
        ("sst2", "valid", r"no valid file .*SST-2/<split>.tsv.*or dev.*gluebenchmark.com"),
        ("wikitext2", "dev", "'dev' is not one of the splits train, valid"),
    ],
)
def test_missing_files_say_what_and_where(tmp_path, name, split, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_dataset(name, root=tmp_path, split=split)
    assert "\n" not in str(caught.value)


def test_unknown_names(tmp_path):
    with pytest.raises(ValueError, match=r"'wikitext3' is no data set: expected one of bundled, "):
        open_dataset("wikitext3")
    with pytest.raises(ValueError, match=r"missing.txt does not exist"):
        open_dataset(str(tmp_path / "missing.txt"))
    with pytest.raises(ValueError, match="is not a folder"):
        open_dataset("wikitext2", root=tmp_path / "missing")
    with pytest.raises(ValueError, match=r"expected one of <split>\.txt"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize("name", ["bundled", "hub:owner/name", "corpus.txt"])
def test_a_root_that_would_be_ignored(tmp_path, name):
    with pytest.raises(ValueError, match="leave root"):
        open_dataset(name, root=tmp_path)


def test_the_hub_offline():
    name = "hub:Salesforce/wikitext:wikitext-2-raw-v1"
    with pytest.raises(ValueError, match="did not come from the hub") as caught:
        open_dataset(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    for wrong in ("hub:", "hub:a/b:c:d"):
        with pytest.raises(ValueError, match="expected hub:owner/name or"):
            open_dataset(wrong)


def test_the_splits_of_the_hub(monkeypatch):
    parts = {"train": 1, "validation_matched": 2, "validation_mismatched": 3}
    monkeypatch.setattr("lln.data.hub.load_dataset", lambda path, config: {**parts, path: config})
    assert open_dataset("hub:nyu-mll/glue:mnli", split="valid") == 2
    assert open_dataset("hub:nyu-mll/glue:mnli", split="valid_mismatched") == 3
    with pytest.raises(ValueError, match="no split 'test': it has train, validation_matched"):
        open_dataset("hub:nyu-mll/glue:mnli", split="test")


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lln\[train\]'"):
        importlib.reload(lln.data)
