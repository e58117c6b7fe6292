"""Reviews, pairs of papers and grey CIFAR-10, in the formats in which they are published."""

import gzip
import json
import lzma
import pickle

import numpy as np
import pytest
from PIL import Image

from lln.data import encode_sequences, load_tokenizer, open_dataset, open_images


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text.encode()))


REVIEWS = [
    (kind, number, f"{kind} {number} “<br />”")
    for kind in ("neg", "pos")
    for number in (0, 11_249, 11_250)
]


def put_table(root):
    rows = [f"{k}_{n}_{9 if k == 'pos' else 2}\t{int(k == 'pos')}\t9\t{t}" for k, n, t in REVIEWS]
    for split in ("train", "test"):
        put(root / f"imdb/{split}.tsv.xz", "\n".join(["id\tlabel\trating\ttext", *rows]) + "\n")


def put_folder(root):
    for split in ("train", "test"):
        for kind, number, text in REVIEWS:
            put(root / f"aclImdb/{split}/{kind}/{number}_9.txt", text)
    put(root / "aclImdb/train/unsup/0_0.txt", "no label")


@pytest.mark.parametrize("prepare", [put_table, put_folder])
def test_reviews(tmp_path, prepare):
    prepare(tmp_path)
    expected = {"train": (0, 11_249), "valid": (11_250,), "test": (0, 11_249, 11_250)}
    for split, numbers in expected.items():
        texts = open_dataset("imdb", root=tmp_path, split=split)
        assert texts.features["label"].names == ["negative", "positive"]
        found = sorted(zip(texts["label"], texts["text"], strict=True))
        assert found == [
            (int(kind == "pos"), text) for kind, number, text in REVIEWS if number in numbers
        ]


def test_reviews_as_bytes(tmp_path):
    put_table(tmp_path)
    tokenizer = load_tokenizer("bytes")
    texts = open_dataset("imdb", root=tmp_path, split="test")
    encoded = encode_sequences(texts, tokenizer, 4000)
    assert [len(ids) for ids in encoded["input_ids"]] == [len(t.encode()) for t in texts["text"]]
    assert tokenizer.batch_decode(list(encoded["input_ids"])) == list(texts["text"])
    short = encode_sequences(texts, tokenizer, 7)
    assert list(short["input_ids"]) == [ids[:7] for ids in encoded["input_ids"]]
    with pytest.raises(ValueError, match="max_length 0 is not at least 1"):
        encode_sequences(texts, tokenizer, 0)
    with pytest.raises(ValueError, match="expected the columns text, or text1 and text2"):
        encode_sequences(texts.remove_columns("label"), tokenizer, 7)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("pos_1_9\t0\t9\ttext", "the id 'pos_1_9' and the label '0' do not agree"),
        ("good_1_9\t1\t9\ttext", "do not agree"),
        ("pos_x\t1\t9\ttext", "do not agree"),
        ("pos_1_9\t1", "has 2 columns instead of 4"),
    ],
)
def test_wrong_labels_of_reviews(tmp_path, row, message):
    put(tmp_path / "imdb/train.tsv", f"id\tlabel\trating\ttext\n{row}\n")
    with pytest.raises(ValueError, match=message):
        open_dataset("imdb", root=tmp_path)


def test_wrong_files_of_reviews(tmp_path):
    with pytest.raises(ValueError, match=r"no train file .*get aclImdb from"):
        open_dataset("imdb", root=tmp_path, split="valid")
    (tmp_path / "aclImdb").mkdir()
    with pytest.raises(ValueError, match="has no reviews for train"):
        open_dataset("imdb", root=tmp_path)
    with pytest.raises(ValueError, match="'dev' is not one of the splits"):
        open_dataset("imdb", root=tmp_path, split="dev")
    put(tmp_path / "aclImdb/train/pos/one.txt", "")
    with pytest.raises(ValueError, match=r"is not named as a review, such as 12_9.txt"):
        open_dataset("imdb", root=tmp_path)


def put_pairs(root, rows=("train\t1\tA\tB", "dev\t0\tB\tA", "test\t1\tB\tB")):
    papers = [json.dumps({"id": name, "title": "", "text": f"{name} é\n"}) for name in "AB"]
    put(root / "aan_citation_pairs/papers.jsonl.xz", "\n".join(papers) + "\n")
    header = "split\tlabel\tciting_id\tcited_id"
    put(root / "aan_citation_pairs/pairs.tsv.gz", "\n".join([header, *rows]) + "\n")


def test_pairs_of_papers(tmp_path):
    put_pairs(tmp_path)
    for split, expected in (
        ("train", {"text1": "A é\n", "text2": "B é\n", "label": 1}),
        ("valid", {"text1": "B é\n", "text2": "A é\n", "label": 0}),
        ("test", {"text1": "B é\n", "text2": "B é\n", "label": 1}),
    ):
        texts = open_dataset("aan", root=tmp_path, split=split)
        assert texts[0] == expected
        assert len(texts) == 1
    tokenizer = load_tokenizer("bytes")
    encoded = encode_sequences(texts, tokenizer, 4)
    assert encoded.column_names == ["input_ids", "other_input_ids", "labels"]
    assert [len(encoded[0][name]) for name in ("input_ids", "other_input_ids")] == [4, 4]


@pytest.mark.parametrize("folder", [".", "lra_release/lra_release/tsv_data"])
def test_pairs_of_the_release_of_long_range_arena(tmp_path, folder):
    for split, label in (("train", "1.0"), ("eval", "0.0"), ("test", "1.0")):
        rows = f'{label}\tP1\tP2\tsays "a\tb\n'
        put(tmp_path / folder / f"new_aan_pairs.{split}.tsv", rows * 2)
    for split, label in (("train", 1), ("valid", 0), ("test", 1)):
        texts = open_dataset("aan", root=tmp_path, split=split)
        assert list(texts) == [{"text1": 'says "a', "text2": "b", "label": label}] * 2


def test_broken_pairs_of_the_release_are_counted(tmp_path):
    put(tmp_path / "new_aan_pairs.train.tsv", "1.0\tP1\tP2\ta\tb\n1.0\tP1\tP2\ta\n")
    with pytest.warns(UserWarning, match=r"1 of 2 rows .* the first one in line 2"):
        assert len(open_dataset("aan", root=tmp_path)) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("train\t2\tA\tB", "unknown label '2', expected 0 or 1"),
        ("train\t1\tA\tC", "papers.jsonl.xz has no paper 'C'"),
        ("dev\t1\tA\tB", "has no pairs for train"),
    ],
)
def test_wrong_pairs(tmp_path, row, message):
    put_pairs(tmp_path, [row])
    with pytest.raises(ValueError, match=message):
        open_dataset("aan", root=tmp_path)


def grey(root, split="train", count=20, labels=None):
    """Strips of ten images each; image n has the brightness n."""
    folder = root / "cifar10_gray"
    folder.mkdir(exist_ok=True)
    for strip in range(count // 10):
        pixels = np.repeat(np.arange(10, dtype=np.uint8) + 10 * strip, 32 * 32).reshape(-1, 32)
        Image.fromarray(pixels).save(folder / f"{split}_{strip:02}.png")
    labels = np.arange(count, dtype=np.uint8) % 10 if labels is None else labels
    np.save(folder / f"{split}_labels.npy", labels, allow_pickle=True)
    return {"root": root, "cache": root / "cache"}


def test_grey_strips(tmp_path):
    options = grey(tmp_path)
    grey(tmp_path, "test", 10)
    for split, places in (("train", range(18)), ("valid", range(18, 20)), ("test", range(10))):
        images = open_images("cifar10_gray", split=split, **options)
        assert images.pixels.shape == (len(places), 32, 32, 1)
        assert images.pixels[:, 5, 6, 0].tolist() == list(places)
        assert images.labels.tolist() == [place % 10 for place in places]
    assert images.classes[3] == "cat"


def test_the_binary_release(tmp_path):
    draw = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    planes = draw.integers(0, 256, (10, 3, 32, 32), np.uint8)
    for batch in range(5):
        rows = [bytes([batch]) + planes[place].tobytes() for place in (2 * batch, 2 * batch + 1)]
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(b"".join(rows))
    images = open_images("cifar10_gray", root=tmp_path, cache=tmp_path / "cache")
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    red, green, blue = (planes[:9, colour].astype(float) for colour in range(3))
    expected = (0.2989 * red + 0.5870 * green + 0.1140 * blue).round()
    np.testing.assert_array_equal(images.pixels[..., 0], expected)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(19, dtype=np.uint8) % 10, "has 19 labels from 0 to 9 for 20 images"),
        (np.arange(20, dtype=np.uint8), "from 0 to 19 for 20 images: expected one from 0 to 9"),
        (np.full(20, 0.5), "holds float64"),
        (np.zeros((20, 10), np.uint8), r"holds uint8 \(20, 10\)"),
        (np.array([{}] * 20, object), "is no .npy file of numbers"),
    ],
)
def test_wrong_labels_of_images(tmp_path, labels, message):
    options = grey(tmp_path, labels=labels)
    with pytest.raises(ValueError, match=message) as caught:
        open_images("cifar10_gray", **options)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())


def test_wrong_files_of_images(tmp_path):
    options = {"root": tmp_path, "cache": tmp_path / "cache"}
    with pytest.raises(ValueError, match=r"no train files .*cifar-10-batches-bin/data_batch"):
        open_images("cifar10_gray", **options)
    pickles = tmp_path / "cifar-10-batches-py"
    pickles.mkdir()
    (pickles / "data_batch_1").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match=r"holds pickles, .* get the binary version"):
        open_images("cifar10_gray", **options)
    binary = tmp_path / "cifar-10-batches-bin"
    binary.mkdir()
    (binary / "data_batch_1.bin").write_bytes(bytes(3072))
    with pytest.raises(ValueError, match="does not hold rows of 3073 bytes"):
        open_images("cifar10_gray", **options)
    grey(tmp_path)
    strip = tmp_path / "cifar10_gray/train_01.png"
    strip.write_bytes(strip.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"train_01.png is damaged or no image"):
        open_images("cifar10_gray", **options)
    Image.new("L", (31, 320)).save(strip)
    with pytest.raises(ValueError, match="is no strip of grey images"):
        open_images("cifar10_gray", **options)
    (tmp_path / "cifar10_gray/train_labels.npy").unlink()
    with pytest.raises(ValueError, match="have no labels"):
        open_images("cifar10_gray", **options)
    assert not list((tmp_path / "cache").iterdir())
