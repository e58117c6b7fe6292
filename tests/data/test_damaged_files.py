"""Files that cannot be read give one line that says which, and what is expected."""

import gzip
import lzma

import pytest
from datasets import Dataset

from lln.data import open_dataset

TEXT = b"".join(b"line %d of a text\n" % number for number in range(2000))


def refused(path, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_dataset(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def flipped(data):
    middle = len(data) // 2
    return (
        data[:middle] + bytes(255 - byte for byte in data[middle : middle + 8]) + data[middle + 8 :]
    )


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: data[:5], flipped, lambda data: b"not compressed"],
    ids=["truncated", "only the head", "flipped bytes", "not compressed"],
)
def test_damaged_archives(tmp_path, suffix, damage):
    path = tmp_path / f"corpus.txt{suffix}"
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path.write_bytes(damage(pack(TEXT)))
    refused(path, f"is damaged or no {suffix[1:]} file .*get it again")


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
@pytest.mark.parametrize("name", ["corpus.txt", "corpus.jsonl", "corpus.txt.gz", "corpus.txt.xz"])
def test_empty_files(tmp_path, name, content):
    path = tmp_path / name
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    refused(path, "is empty: expected UTF-8 text")


def test_a_file_of_no_bytes_is_no_archive(tmp_path):
    (tmp_path / "corpus.txt.xz").write_bytes(b"")
    refused(tmp_path / "corpus.txt.xz", "is damaged or no xz file")


def test_text_in_another_encoding(tmp_path):
    (tmp_path / "corpus.txt").write_bytes("naïve\n".encode("latin-1"))
    refused(tmp_path / "corpus.txt", "is not UTF-8 text")


@pytest.mark.parametrize("line", ["{", "[1]", '"text"', '{"body": "x"}', '{"text": 1}'])
def test_lines_that_hold_no_text(tmp_path, line):
    (tmp_path / "corpus.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    refused(tmp_path / "corpus.jsonl", r'line 2: expected a JSON object such as \{"text": "…"\}')


def test_damaged_parquet(tmp_path):
    path = tmp_path / "corpus.parquet"
    Dataset.from_dict({"body": ["x"]}).to_parquet(path)
    refused(path, "has no column 'text': it has body")
    path.write_bytes(path.read_bytes()[:-10])
    refused(path, "is damaged or no parquet file")
    Dataset.from_dict({"text": [1]}).to_parquet(path)
    refused(path, "the column 'text' does not hold text")
    Dataset.from_dict({"text": []}).to_parquet(path)
    refused(path, "is empty: expected rows")


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "train.txt").mkdir()
    with pytest.raises(ValueError, match=r"train.txt cannot be read: Is a directory"):
        open_dataset(str(tmp_path))
