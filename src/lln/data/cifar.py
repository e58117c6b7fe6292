"""CIFAR-10 (Krizhevsky 2009) in grey, the image task of the Long Range Arena.

As LRA's, valid is the last tenth of train, and grey is 0.2989 R + 0.5870 G + 0.1140 B.
"""

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lln.data.cache import cached
from lln.data.records import Images, record_of, write_records

SIZE = 32
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
GREY = np.array((0.2989, 0.5870, 0.1140), np.float64)


def read(root: Path, split: str, origin: str, cache: str | Path | None) -> Images:
    """Strips of grey images with their labels, or the binary version of the original release."""
    source = "test" if split == "test" else "train"
    paths = _files(root, source, origin)
    contents = [path.read_bytes() for path in paths]

    def save(path: Path) -> None:
        load = _strips if paths[0].suffix == ".npy" else _batches
        labels, images = load(paths, contents)
        if len(labels) != len(images) or not np.isin(labels, range(len(CLASSES))).all():
            raise ValueError(
                f"{paths[0]} has {len(labels)} labels from {labels.min()} to {labels.max()} for "
                f"{len(images)} images: expected one from 0 to 9 for each image"
            )
        last = len(labels) - len(labels) // 10
        places = {"train": range(last), "valid": range(last, len(labels))}.get(
            split, range(len(labels))
        )
        dtype = record_of(SIZE, 1)
        rows = ((place, labels[place], images[place][:, :, None]) for place in places)
        write_records(path, dtype, (np.array(row, dtype) for row in rows))

    content = [
        f"cifar 1 {split}",
        *(f"{path.name} {zlib.crc32(data)}" for path, data in zip(paths, contents, strict=True)),
    ]
    return Images(cached("cifar10_gray.npy", content, save, folder=cache), CLASSES)


def _files(root: Path, source: str, origin: str) -> list[Path]:
    """The labels and strips, or the batches."""
    folder = root / "cifar10_gray"
    if strips := sorted(folder.glob(f"{source}_[0-9][0-9].png")):
        labels = folder / f"{source}_labels.npy"
        if not labels.is_file():
            raise ValueError(f"{labels} does not exist, so that the images have no labels")
        return [labels, *strips]
    batches = {"train": "data_batch_[1-5].bin", "test": "test_batch.bin"}[source]
    for folder in (root, root / "cifar10"):
        if paths := sorted((folder / "cifar-10-batches-bin").glob(batches)):
            return paths
        if (folder / "cifar-10-batches-py").is_dir():
            raise ValueError(
                f"{folder / 'cifar-10-batches-py'} holds pickles, which can run any code: {origin}"
            )
    raise ValueError(
        f"'cifar10_gray' has no {source} files in {root}: expected cifar10_gray/{source}_00.png "
        f"and {source}_labels.npy, or cifar-10-batches-bin/{batches}; {origin}"
    )


def _strips(
    paths: list[Path], contents: list[bytes]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.uint8]]:
    try:
        labels = np.load(io.BytesIO(contents[0]), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{paths[0]} is no .npy file of numbers ({error})") from error
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{paths[0]} holds {labels.dtype} {labels.shape}, not a row of whole numbers"
        )
    return labels, np.concatenate(list(map(_strip, paths[1:], contents[1:])))  # (images, 32, 32)


def _strip(path: Path, content: bytes) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(content)) as image:
            strip = np.asarray(image)
    except OSError as error:
        raise ValueError(f"{path} is damaged or no image ({error}): get it again") from error
    if strip.dtype != np.uint8 or strip.ndim != 2 or strip.shape[1] != SIZE or len(strip) % SIZE:
        raise ValueError(f"{path} is no strip of grey images of {SIZE} × {SIZE} pixels")
    return strip.reshape(-1, SIZE, SIZE)


def _batches(
    paths: list[Path], contents: list[bytes]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.uint8]]:
    """Rows of a label and the planes of red, green and blue."""
    width = 1 + 3 * SIZE * SIZE
    for path, content in zip(paths, contents, strict=True):
        if not content or len(content) % width:
            raise ValueError(f"{path} is damaged: it does not hold rows of {width} bytes")
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, width)
    colours = rows[:, 1:].reshape(-1, 3, SIZE, SIZE)
    images = [np.rint(np.tensordot(GREY, image, 1)).astype(np.uint8) for image in colours]
    return rows[:, 0], np.stack(images)  # (images, 32, 32)
