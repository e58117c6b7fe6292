"""Image files decoded once into a memory-mapped file of one size."""

import io
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lln.data.cache import cached
from lln.data.parallel import mapped
from lln.data.records import Images, record_of, write_records
from lln.data.stores import Store

WORTH_A_PROCESS = 5000
MOST_PIXELS = 2**27  # of one image: what says it has more is a mistake or a bomb


class Picture(NamedTuple):
    """A file of an image, and its class."""

    name: str
    label: int


def decoded(
    store: Store,
    pictures: list[Picture],
    classes: Iterable[str],
    *,
    size: int,
    channels: int,
    cache: str | Path | None,
    resize: bool = True,
) -> Images:
    """The images of a store, from the cache where they were decoded before.

    Images that cannot be read are left out, and a warning counts them.

    Args:
        store: Holds the files.
        pictures: Which of them, with their labels.
        classes: Names of the labels.
        size: Of the images, which become squares.
        channels: 1 for grey, 3 for colours.
        cache: Folder of the cache; `$XDG_CACHE_HOME/lln` for None.
        resize: Whether to make other sizes fit, not to refuse them.
    """
    dtype = record_of(size, channels)

    def save(path: Path) -> None:
        decode = partial(_decode, size=size, channels=channels, resize=resize)
        files = ((picture.name, store.read(picture.name)) for picture in pictures)
        images = mapped(
            decode, files, "decoding images", total=len(pictures), least=WORTH_A_PROCESS
        )
        write_records(path, dtype, _records(dtype, pictures, images))

    prints = store.fingerprints([picture.name for picture in pictures])
    content = (f"{key} {label}" for key, (_, label) in zip(prints, pictures, strict=True))
    path = cached(
        "images.npy", [f"images 1 {size} {channels} {resize}", *content], save, folder=cache
    )
    images = Images(path, tuple(classes))
    if missing := len(pictures) - len(images):
        places = np.setdiff1d(np.arange(len(pictures)), images.records["place"])
        warnings.warn(
            f"{missing} of {len(pictures)} images cannot be read and are left out, the first one "
            f"is {pictures[places[0]].name}",
            stacklevel=3,
        )
    return images


def _decode(
    file: tuple[str, bytes], *, size: int, channels: int, resize: bool
) -> NDArray[np.uint8] | None:
    """The pixels of an image, (size, size, channels), or None if it cannot be read."""
    name, content = file
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an image that is readable is enough
            image = Image.open(io.BytesIO(content))
            bomb = image.width * image.height > MOST_PIXELS
            if not bomb:
                image = image.convert("L" if channels == 1 else "RGB")
    except Image.DecompressionBombError:
        bomb = True
    except Exception:  # a damaged file raises what the decoder of its format likes
        return None
    if bomb:
        raise ValueError(f"{name} is refused: it says that it has more than {MOST_PIXELS:,} pixels")
    if image.size != (size, size):
        if not resize:
            raise ValueError(f"{name} has {image.width} × {image.height} pixels instead of {size}")
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(size, size, channels)


def _records(
    dtype: np.dtype[Any], pictures: list[Picture], images: Iterable[NDArray[np.uint8] | None]
) -> Iterator[NDArray[Any]]:
    found = False
    for place, (picture, image) in enumerate(zip(pictures, images, strict=True)):
        if image is not None:
            found = True
            yield np.array((place, picture.label, image), dtype)
    if not found:
        raise ValueError(f"none of {len(pictures)} images can be read, such as {pictures[0].name}")
