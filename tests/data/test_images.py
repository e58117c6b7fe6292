"""Sets of images: Dogs vs Cats, folders and zips, crops and flips."""

import io
import pickle
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from lln.data import CropsAndFlips, PixelTokens, open_dataset, open_images


def jpeg(colour, size=(8, 6)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG", quality=95)
    return file.getvalue()


def animals(count=10):
    """Cats are dark and dogs are light, each a little more with its number."""
    base = {"cat": 10, "dog": 130}
    return {
        f"train/{kind}.{number}.jpg": jpeg((base[kind] + 10 * number,) * 3)
        for kind in base
        for number in range(count)
    }


def zipped(files, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def put(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cache_is_empty(tmp_path):
    cache = tmp_path / "cache"
    return not cache.exists() or not list(cache.iterdir())


def open_animals(tmp_path, split="train", size=4):
    return open_images(
        "dogs_vs_cats", size=size, root=tmp_path / "data", split=split, cache=tmp_path / "cache"
    )


SOURCES = {
    "folder": lambda: {f"dogs_vs_cats/{name}": content for name, content in animals().items()},
    "flat folder": lambda: {
        f"dogs-vs-cats/{name.removeprefix('train/')}": content
        for name, content in animals().items()
    },
    "train.zip": lambda: {"train.zip": zipped(animals())},
    "subset": lambda: {"dogs_vs_cats/dogs_vs_cats_64px.zip": zipped(animals())},
    "whole competition": lambda: {
        "dogs-vs-cats.zip": zipped(
            {
                "sampleSubmission.csv": b"id,label",
                "test1.zip": zipped({"test1/1.jpg": jpeg((0, 0, 0))}),
                "train.zip": zipped({"__MACOSX/train/._cat.0.jpg": b"", **animals()}),
            }
        )
    },
}


@pytest.mark.parametrize("source", SOURCES)
def test_dogs_vs_cats_from_everything_it_comes_in(tmp_path, source):
    put(tmp_path / "data", SOURCES[source]())
    images = open_animals(tmp_path)
    assert images.classes == ("cat", "dog")
    assert images.pixels.shape == (16, 4, 4, 3)
    found = sorted(zip(images.labels.tolist(), images.pixels[:, 0, 0, 0].tolist(), strict=True))
    assert found == [(label, 10 + 120 * label + 10 * n) for label in (0, 1) for n in range(8)]
    for split, number in (("valid", 8), ("test", 9)):
        part = open_animals(tmp_path, split)
        assert sorted(part.pixels[:, 0, 0, 0].tolist()) == [10 + 10 * number, 130 + 10 * number]


def test_items(tmp_path):
    put(tmp_path / "data", {"train.zip": zipped(animals())})
    images = open_animals(tmp_path)
    item = images[9]
    assert item["labels"] == images.labels[9]
    stored = torch.from_numpy(np.array(images.pixels[9])).permute(2, 0, 1)
    torch.testing.assert_close((item["pixel_values"] + 1) * 127.5, stored.float())
    assert item["pixel_values"].min() >= -1
    assert item["pixel_values"].max() <= 1


def test_workers_map_the_file_anew(tmp_path):
    put(tmp_path / "data", {"train.zip": zipped(animals())})
    images = open_animals(tmp_path, size=64)
    sent = pickle.dumps(images)
    assert len(sent) < 1000
    assert isinstance(images.pixels, np.memmap)
    np.testing.assert_array_equal(pickle.loads(sent).pixels, images.pixels)


def test_the_cache_depends_on_content_and_size(tmp_path):
    put(tmp_path / "data", {"train.zip": zipped(animals())})
    first = open_animals(tmp_path)
    assert open_animals(tmp_path).path == first.path
    assert open_animals(tmp_path, size=8).path != first.path
    put(tmp_path / "data", {"train.zip": zipped({**animals(), "train/cat.0.jpg": jpeg((1, 1, 1))})})
    assert open_animals(tmp_path).path != first.path


def test_a_damaged_cache(tmp_path):
    put(tmp_path / "data", {"train.zip": zipped(animals())})
    path = open_animals(tmp_path).path
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="is damaged: delete it"):
        open_animals(tmp_path)


def test_an_unreadable_image_is_counted(tmp_path):
    files = {**animals(), "train/dog.3.jpg": jpeg((0, 0, 0))[:100], "train/cat.1.jpg": b"<html>"}
    put(tmp_path / "data", {"train.zip": zipped(files)})
    for _ in range(2):  # also from the cache
        with pytest.warns(UserWarning, match=r"2 of 16 images .* the first one is train/cat.1.jpg"):
            images = open_animals(tmp_path)
        assert len(images) == 14
        assert np.bincount(images.labels).tolist() == [7, 7]


def test_no_readable_image(tmp_path):
    put(tmp_path / "data", {"train.zip": zipped(dict.fromkeys(animals(), b"no image"))})
    with pytest.raises(ValueError, match="none of 16 images can be read"):
        open_animals(tmp_path)
    assert cache_is_empty(tmp_path)


def corrupt(archive):
    """The archive with other bytes in the middle of its first file."""
    return archive[:60] + bytes(200) + archive[260:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(animals())[:-100], "is damaged or no zip file .*: get it again"),
        (b"", "is damaged or no zip file"),
        (corrupt(zipped(animals(), zipfile.ZIP_STORED)), "is damaged at 'train/cat.0.jpg'"),
        (zipped({"../evil.jpg": b""}), r"is refused: its file '../evil.jpg' leads out"),
        (zipped({"/etc/cat.0.jpg": b""}), "leads out of the archive"),
        (zipped({"C:\\cat.0.jpg": b""}), "leads out of the archive"),
        (zipped({"a\\..\\..\\cat.0.jpg": b""}), "leads out of the archive"),
        (zipped({"train/cat.0.jpg": bytes(2**26 + 1)}), "67,108,865 bytes unpacked, more than"),
        (zipped({"train/bird.0.jpg": b""}), "'train/bird.0.jpg' is neither such as cat.0.jpg nor"),
        (zipped({"readme.txt": b""}), "has no images for train: expected files with .jpg"),
        (zipped({"train.zip": zipped({"../evil.jpg": b""})}), "leads out of the archive"),
        (zipped({"train.zip": b"PK no zip"}), "train.zip is damaged or no zip file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_archives_that_are_refused(tmp_path, content, message):
    put(tmp_path / "data", {"train.zip": content})
    with pytest.raises(ValueError, match=message) as caught:
        open_animals(tmp_path)
    assert "\n" not in str(caught.value)
    assert cache_is_empty(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["data"]


def test_a_link_in_an_archive(tmp_path):
    link = zipfile.ZipInfo("train/cat.0.jpg")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    put(tmp_path / "data", {"train.zip": buffer.getvalue()})
    with pytest.raises(ValueError, match="leads out of the archive"):
        open_animals(tmp_path)


def test_an_image_that_says_it_is_huge(tmp_path):
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    png = bytearray(file.getvalue())
    png[16:24] = (12_000).to_bytes(4, "big") * 2
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    put(tmp_path / "data", {"train.zip": zipped({**animals(), "train/cat.0.jpg": bytes(png)})})
    with pytest.raises(ValueError, match=r"cat.0.jpg is refused: .* more than 134,217,728 pixels"):
        open_animals(tmp_path)
    assert cache_is_empty(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_folder_for_each_class(tmp_path, kind):
    files = {
        f"{name}/{number:02}.png": jpeg((shade + number,) * 3)
        for name, shade in (("b", 100), ("a", 0))
        for number in range(20)
    }
    put(tmp_path / "set", {**files, "a/notes.txt": b""})
    path = tmp_path / "set"
    if kind == "zip":
        path = tmp_path / "set.zip"
        path.write_bytes(zipped(files))
    parts = {
        split: open_images(str(path), size=4, split=split, cache=tmp_path / "cache")
        for split in ("train", "valid", "test")
    }
    assert parts["train"].classes == ("a", "b")
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 32,
        "valid": 4,
        "test": 4,
    }
    assert parts["test"].pixels[:, 0, 0, 0].tolist() == [9, 19, 109, 119]
    assert parts["test"].labels.tolist() == [0, 0, 1, 1]


def test_a_folder_for_each_split(tmp_path):
    shades = {"train": 10, "val": 20, "test": 30}
    put(
        tmp_path / "set",
        {f"{split}/{name}/0.jpg": jpeg((shades[split],) * 3) for split in shades for name in "ab"},
    )
    for split, shade in (("train", 10), ("valid", 20), ("test", 30)):
        images = open_images(str(tmp_path / "set"), size=2, split=split, cache=tmp_path / "cache")
        assert images.pixels[:, 0, 0, 0].tolist() == [shade, shade]
        assert images.labels.tolist() == [0, 1]


@pytest.fixture
def gradient(tmp_path):
    """One image whose pixels are all different."""
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    put(tmp_path / "set/train", {f"{name}/0.png": file.getvalue() for name in "ab"})
    return open_images(str(tmp_path / "set"), size=8, cache=tmp_path / "cache")


def test_crops_and_flips(gradient):
    pixels = gradient[0]["pixel_values"]
    wide = torch.nn.functional.pad(pixels, [2] * 4, mode="reflect")
    possible = [
        crop
        for down in range(5)
        for right in range(5)
        for crop in (
            wide[:, down : down + 8, right : right + 8],
            wide[:, down : down + 8, right : right + 8].flip(-1),
        )
    ]
    changed = CropsAndFlips(gradient, seed=0, margin=2)
    seen = set()
    for epoch in range(200):
        changed.set_epoch(epoch)
        item = changed[0]
        assert item["labels"] == 0
        seen.add(
            next(n for n, crop in enumerate(possible) if torch.equal(crop, item["pixel_values"]))
        )
    assert len(seen) > 45


def test_crops_depend_on_seed_epoch_and_index_alone(gradient):
    def picture(seed, epoch, index):
        changed = CropsAndFlips(gradient, seed=seed, margin=3)
        changed.set_epoch(epoch)
        return changed[index]["pixel_values"]

    torch.testing.assert_close(picture(0, 1, 1), picture(0, 1, 1), rtol=0, atol=0)
    base = picture(0, 1, 1)
    assert not all(torch.equal(base, picture(seed, 1, 1)) for seed in (1, 2))
    assert not all(torch.equal(base, picture(0, epoch, 1)) for epoch in (2, 3))
    sent = CropsAndFlips(gradient, seed=0, margin=3)
    sent.set_epoch(1)
    torch.testing.assert_close(sent[1]["pixel_values"], base, rtol=0, atol=0)


def test_arguments_that_do_not_fit(gradient, tmp_path, monkeypatch):
    monkeypatch.delenv("LLN_DATA", raising=False)
    with pytest.raises(ValueError, match="margin 8 is not from 0 to 7"):
        CropsAndFlips(gradient, seed=0, margin=8)
    with pytest.raises(ValueError, match="images of 3 channels are no sequence"):
        PixelTokens(gradient)
    for name, options, message in (
        ("dogs_vs_cats", {}, "needs a folder of data sets: give root or set LLN_DATA"),
        ("dogs_vs_cats", {"root": tmp_path}, "needs a size of the images"),
        ("dogs_vs_cats", {"root": tmp_path, "size": 8}, "has no files in .*kaggle.com"),
        ("cifar10_gray", {"root": tmp_path, "size": 8}, "has a size of its own: leave size 8 out"),
        ("pathfinder32", {"root": tmp_path / "no"}, "the root .* is not a folder"),
        (str(tmp_path), {"root": tmp_path, "size": 8}, "leave root"),
        ("cats_vs_dogs", {"size": 8}, "is no set of images: expected one of dogs_vs_cats"),
        ("dogs_vs_cats", {"split": "dev"}, "'dev' is not one of the splits"),
    ):
        with pytest.raises(ValueError, match=message):
            open_images(name, **options)
    with pytest.raises(ValueError, match="'dogs_vs_cats' is a set of images: use open_images"):
        open_dataset("dogs_vs_cats")
