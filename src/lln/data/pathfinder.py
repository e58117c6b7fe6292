"""Pathfinder: are two marked tips the ends of one dashed path? (Linsley et al. 2018).

Published in arXiv 1805.08315, and drawn as for the Long Range Arena (Tay et al. 2021,
lra_benchmarks/data/pathfinder.py). One marker lies on the start of a path, the other on the end of
the same path (label 1) or of the other one (label 0). Labels alternate instead of being drawn, so
that any even number of images is balanced.
"""

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lln.data.cache import cached
from lln.data.dashed_paths import Settings, disc, draw_paths
from lln.data.decoding import Picture, decoded
from lln.data.locating import PARTS, RELEASES, check_part
from lln.data.parallel import mapped
from lln.data.records import Images, record_of, write_records
from lln.data.stores import Folder

CLASSES = ("apart", "connected")
WORTH_A_PROCESS = 500

_SMALL = Settings(32, 2, 0.5, (1,), 7, 1.5, 1.0, 1.5, 2.0, 20)
_LARGE = Settings(128, 5, 1.5, (2, 3), 20, 3, 1.8, 0.9, 0.9, 35)
# LRA reports the 14 dashes that it calls hard; 128 × 128 pixels are Path-X.
SETTINGS = {
    "pathfinder32": _SMALL,
    "pathfinder32_intermediate": replace(_SMALL, dashes=9),
    "pathfinder32_easy": replace(_SMALL, dashes=6),
    "pathfinder128": _LARGE,
}


def generate_pathfinder(
    size: int,
    *,
    seed: int,
    name: str = "pathfinder32",
    split: str = "train",
    cache: str | Path | None = None,
) -> Images:
    """Draws images, or finds them where this was done before.

    An image depends on the seed, the split and its index alone: more of them start with the same
    ones, and several processes draw the same as one. Its record keeps the truth: `paths` has the
    start and the end (row, column) of every dash of both paths, (2, dashes, 2, 2), and `marked` the
    paths whose start and whose end have the markers.

    Args:
        size: Number of images; LRA has 160,000 for train and 20,000 for valid and test.
        seed: Of all splits.
        name: A name of `SETTINGS`.
        split: `"train"`, `"valid"` or `"test"`.
        cache: Folder for the images; `$XDG_CACHE_HOME/lln` by default.
    """
    if name not in SETTINGS:
        raise ValueError(f"{name!r} is not one of {', '.join(SETTINGS)}")
    check_part(split)
    if size < 1:
        raise ValueError(f"size {size} is not at least 1")
    settings = SETTINGS[name]
    make = partial(draw_record, settings, seed, PARTS.index(split))

    def save(path: Path) -> None:
        records = mapped(make, range(size), f"drawing {name}", total=size, least=WORTH_A_PROCESS)
        write_records(path, _dtype(settings), records)

    content = [f"pathfinder 1 {size} {seed} {split}", str(settings)]
    return Images(cached(f"{name}.npy", content, save, folder=cache), CLASSES)


def read(name: str, root: Path, split: str, origin: str, cache: str | Path | None) -> Images:
    """LRA's release: images whose names and labels are in `metadata`, a row each.

    As in LRA's loader, 80 % are train, 10 % valid and 10 % test, here in the order of the rows;
    empty files, of which the release has a few, are left out and counted.
    """
    settings = SETTINGS[name]
    level = {6: "curv_baseline"}.get(settings.dashes, f"curv_contour_length_{settings.dashes}")
    below = f"pathfinder{settings.size}/{level}"
    places = [root / release / below for release in RELEASES]
    folder = next((place for place in places if (place / "metadata").is_dir()), None)
    if folder is None:
        raise ValueError(f"{name!r} has no {below}/metadata in {root}: {origin}")
    rows = [row for path in _numbered(folder / "metadata") for row in _rows(path)]
    first, last = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}[split]
    chosen = rows[len(rows) * first // 10 : len(rows) * last // 10]
    if not chosen:
        raise ValueError(f"{folder} lists {len(rows)} images, which gives none for {split}")
    return decoded(
        Folder(folder), chosen, CLASSES, size=settings.size, channels=1, cache=cache, resize=False
    )


def _numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npy"), key=lambda path: (len(path.name), path.name))


def _rows(path: Path) -> Iterator[Picture]:
    """Names and labels of a file that is text in LRA's release, and an array as it is generated."""
    content = path.read_bytes()
    try:
        if content.startswith(npy.MAGIC_PREFIX):
            rows = np.load(io.BytesIO(content), allow_pickle=False).astype(str).tolist()
        else:
            rows = [line.split() for line in content.decode().splitlines()]
        for folder, file, _, label, *_ in rows:
            place = PurePosixPath(folder, file)
            if place.is_absolute() or ".." in place.parts:
                raise ValueError(f"{str(place)!r} leads out of the folder")
            if label not in ("0", "1"):
                raise ValueError(f"the label {label!r} is neither 0 nor 1")
            yield Picture(str(place), int(label))
    except (ValueError, TypeError, EOFError) as error:
        raise ValueError(f"{path} is no list of images with their labels: {error}") from error


def draw_record(settings: Settings, seed: int, split: int, index: int) -> NDArray[Any]:
    """An image with its label, its paths and which tips have markers."""
    draw = np.random.default_rng([seed, split, index])
    image, paths = draw_paths(settings, draw)
    label, start = index % 2, int(draw.integers(2))
    end = start if label else 1 - start
    for tip in (paths[start][0].start, paths[end][-1].end):
        image = np.maximum(image, disc(settings.size, tip, settings.marker_radius))
    record = np.zeros((), _dtype(settings))
    record["place"], record["label"], record["marked"] = index, label, (start, end)
    record["paths"] = [[(dash.start, dash.end) for dash in path] for path in paths]
    record["image"] = np.rint(image * (255 / image.max()))[:, :, None]  # (size, size, 1)
    return record


def _dtype(settings: Settings) -> np.dtype[Any]:
    truth = [("paths", "<i2", (2, settings.dashes, 2, 2)), ("marked", "u1", (2,))]
    return np.dtype(record_of(settings.size, 1).descr + truth)
