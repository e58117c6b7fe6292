"""`open_images`: one name for every set of images."""

import re
from itertools import groupby
from pathlib import Path, PurePosixPath

from lln.data import cifar, pathfinder
from lln.data.decoding import Picture, decoded
from lln.data.locating import check_part, data_root
from lln.data.records import Images
from lln.data.stores import open_store

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
SPLIT_FOLDERS = {written for names in SPLITS.values() for written in names}
ANIMAL = re.compile(r"(cat|dog)\.(\d+)\.jpg")
ANIMALS = (
    "dogs_vs_cats/dogs_vs_cats*.zip",
    *(
        f"{folder}{file}"
        for folder in ("dogs_vs_cats/", "dogs-vs-cats/", "")
        for file in ("dogs-vs-cats*.zip", "train.zip", "train/cat.0.jpg", "cat.0.jpg")
    ),
)
ORIGINS = {
    "dogs_vs_cats": "get train.zip from https://www.kaggle.com/c/dogs-vs-cats/data",
    "cifar10_gray": "get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
    **dict.fromkeys(pathfinder.SETTINGS, "draw it with lln.data.generate_pathfinder"),
}


def open_images(
    name: str,
    *,
    size: int | None = None,
    root: str | Path | None = None,
    split: str = "train",
    cache: str | Path | None = None,
) -> Images:
    """Opens a set of images: the first time they are decoded, then mapped from the cache.

    Args:
        name: `"dogs_vs_cats"`, `"cifar10_gray"`, `"pathfinder32"`, `"pathfinder32_intermediate"`,
            `"pathfinder32_easy"`, `"pathfinder128"`; or the path of a folder or zip with a folder
            for each class, within `train`, `valid` and `test` or not: then of every ten images of a
            class the ninth is valid and the tenth test, as Dogs vs Cats is split by number.
        size: Of the squares that images become; needed where it is not given by the set.
        root: Folder of the named sets; the environment variable LLN_DATA by default.
        split: `"train"`, `"valid"` or `"test"`.
        cache: Folder for decoded images; `$XDG_CACHE_HOME/lln` by default.
    """
    check_part(split)
    if name in ORIGINS:
        folder = data_root(name, root, ORIGINS[name])
    elif root is not None:
        raise ValueError(f"{name!r} is not looked for below a root: leave root {str(root)!r} out")
    if name == "cifar10_gray" or name in pathfinder.SETTINGS:
        if size is not None:
            raise ValueError(f"{name!r} has a size of its own: leave size {size} out")
        if name == "cifar10_gray":
            return cifar.read(folder, split, ORIGINS[name], cache)
        return pathfinder.read(name, folder, split, ORIGINS[name], cache)
    if size is None or size < 1:
        raise ValueError(f"{name!r} needs a size of the images, in pixels, such as size=64")
    if name == "dogs_vs_cats":
        return _dogs_vs_cats(_animals(folder), split, size, cache)
    path = Path(name).expanduser()
    if not path.exists():
        raise ValueError(
            f"'{name}' is no set of images: expected one of {', '.join(ORIGINS)}, a folder or a zip"
        )
    return _image_folder(path, split, size, cache)


def _animals(root: Path) -> Path:
    for pattern in ANIMALS:
        for path in sorted(root.glob(pattern)):
            return path if path.suffix == ".zip" else path.parent
    raise ValueError(
        f"'dogs_vs_cats' has no files in {root}: expected one of {', '.join(ANIMALS)}; "
        f"{ORIGINS['dogs_vs_cats']}"
    )


def _dogs_vs_cats(path: Path, split: str, size: int, cache: str | Path | None) -> Images:
    """Kaggle's zip, that within it, or a folder of cat.0.jpg; splits by the number of an image."""
    with open_store(path, within="train.zip") as store:
        pictures = []
        for name in store.names():
            file = PurePosixPath(name)
            # Images of Kaggle's test set are without labels.
            if file.suffix.lower() not in SUFFIXES or file.parent.name.startswith("test"):
                continue
            named = ANIMAL.fullmatch(file.name)
            if named is None:
                raise ValueError(f"{path}: {name!r} is neither such as cat.0.jpg nor dog.0.jpg")
            if _split_of(int(named[2])) == split:
                pictures.append(Picture(name, int(named[1] == "dog")))
        _check(path, split, pictures)
        return decoded(store, pictures, ("cat", "dog"), size=size, channels=3, cache=cache)


def _image_folder(path: Path, split: str, size: int, cache: str | Path | None) -> Images:
    """A folder or zip with a folder for each class, below one for each split or not."""
    with open_store(path) as store:
        files = [
            file
            for file in map(PurePosixPath, store.names())
            if file.suffix.lower() in SUFFIXES and len(file.parts) > 1
        ]
        if any(set(file.parts[:-2]) & SPLIT_FOLDERS for file in files):
            chosen = [file for file in files if set(file.parts[:-2]) & set(SPLITS[split])]
        else:
            by_class = groupby(sorted(files), key=lambda file: file.parent)
            numbered = (pair for _, members in by_class for pair in enumerate(members))
            chosen = [file for number, file in numbered if _split_of(number) == split]
        classes = sorted({file.parent.name for file in files})
        pictures = [Picture(str(file), classes.index(file.parent.name)) for file in chosen]
        _check(path, split, pictures)
        return decoded(store, pictures, classes, size=size, channels=3, cache=cache)


def _split_of(number: int) -> str:
    """Of ten numbers in a row eight are train; a part of a set has the splits of the whole."""
    return {8: "valid", 9: "test"}.get(number % 10, "train")


def _check(path: Path, split: str, pictures: list[Picture]) -> None:
    if not pictures:
        raise ValueError(
            f"{path} has no images for {split}: expected files with {', '.join(SUFFIXES)} in a "
            "folder for each class, or Kaggle's cat.0.jpg and dog.0.jpg"
        )
