"""IMDb reviews (Maas et al. 2011), the text task of the Long Range Arena.

LRA validates on the test set. Here valid is the last tenth of train by the number in a file's name,
the same reviews whatever the format.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Value

from lln.data.locating import Corpus, check_part, find
from lln.data.progress import tracked
from lln.data.tables import read_rows

LABELS = ("negative", "positive")
FOLDERS = {"neg": 0, "pos": 1}
FIRST_OF_VALID = 11_250  # of the numbers 0 to 12,499 of either class
FILE = re.compile(r"(\d+)_(\d+)")

CORPUS = Corpus(
    ("{split}.tsv",),
    "get aclImdb from https://ai.stanford.edu/~amaas/data/sentiment and unpack it there",
    folders=("imdb",),
)


def read(name: str, root: Path, split: str) -> Dataset:
    """Reviews (column `text`) and their `label`, from `imdb/train.tsv` or the folder `aclImdb`."""
    check_part(split)
    source = "test" if split == "test" else "train"
    folders = [path for path in (root / "aclImdb", root / "imdb/aclImdb") if path.is_dir()]
    rows = _files(folders[0] / source) if folders else _table(find(name, CORPUS, root, source)[0])
    chosen = [
        (text, label)
        for number, text, label in rows
        if source == "test" or (number >= FIRST_OF_VALID) == (split == "valid")
    ]
    if not chosen:
        raise ValueError(f"{name!r} has no reviews for {split} below {root}")
    texts, labels = zip(*chosen, strict=True)
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(LABELS))})
    return Dataset.from_dict({"text": list(texts), "label": list(labels)}, features)


def _table(path: Path) -> Iterator[tuple[int, str, int]]:
    for place, row in read_rows(path):
        if not {"id", "label", "text"} <= row.keys():
            raise ValueError(f"{path} has no columns id, label and text: it has {', '.join(row)}")
        kind, _, file = row["id"].partition("_")
        named = FILE.fullmatch(file)
        if named is None or row["label"] != str(FOLDERS.get(kind)):
            raise ValueError(
                f"{path} {place}: the id {row['id']!r} and the label {row['label']!r} do not "
                "agree: expected such as pos_12_9 and 1"
            )
        yield int(named[1]), row["text"], int(row["label"])


def _files(folder: Path) -> Iterator[tuple[int, str, int]]:
    """Reviews by number, one of each class in turn."""
    found = []
    for kind, label in FOLDERS.items():
        for path in (folder / kind).glob("*.txt"):
            named = FILE.fullmatch(path.stem)
            if named is None:
                raise ValueError(f"{path} is not named as a review, such as 12_9.txt")
            found.append((int(named[1]), label, path))
    for number, label, path in tracked(sorted(found), "reading reviews", total=len(found)):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error.reason}") from error
        yield number, text, label
