"""Where the files of a named data set may lie below a root."""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lln.data.reading import COMPRESSIONS

# Publishers name the same split differently.
SPLITS = {
    "train": ("train",),
    "valid": ("valid", "validation", "dev", "val", "eval", "validation_matched", "dev_matched"),
    "valid_mismatched": ("validation_mismatched", "dev_mismatched"),
    "test": ("test",),
}
PARTS = ("train", "valid", "test")  # the splits that every set of examples has
# Where the Long Range Arena's release may lie below a root: its archive has its name twice.
RELEASES = ("", "lra_release/", "lra_release/lra_release/")


@dataclass(frozen=True)
class Corpus:
    """Files that may hold a data set, in order of preference.

    Attributes:
        patterns: Paths with `{split}`; the suffix of a compression may follow.
        origin: What to do to get the files.
        folders: Of the paths, below the root.
        root: For a corpus that comes with the package.
    """

    patterns: tuple[str, ...]
    origin: str
    folders: tuple[str, ...] = (".",)
    root: Path | None = None


# What a folder that a user names may hold: plain files, and those that are published.
FOLDER = Corpus(
    (
        "{split}.txt",
        "{split}.jsonl",
        "{split}.parquet",
        "{split}-*-of-*.parquet",
        "wiki.{split}.raw",
        "wiki.{split}.tokens",
    ),
    "put your texts there",
)


def _wikitext(number: int) -> Corpus:
    return Corpus(
        (
            f"wikitext{number}_{{split}}.txt",
            f"wikitext-{number}-raw/wiki.{{split}}.raw",
            f"wikitext-{number}-raw-v1/{{split}}-*-of-*.parquet",
            f"wikitext-{number}/wiki.{{split}}.tokens",
        ),
        "get it from https://huggingface.co/datasets/Salesforce/wikitext, or open "
        f"'hub:Salesforce/wikitext:wikitext-{number}-raw-v1'",
        folders=(".", "wikitext"),
    )


CORPORA = {
    "bundled": Corpus(
        ("{split}.txt",), "install the package again", root=Path(str(files("lln.data") / "texts"))
    ),
    "wikitext2": _wikitext(2),
    "wikitext103": _wikitext(103),
    "wikipedia": Corpus(
        FOLDER.patterns[:4],
        "make it from https://dumps.wikimedia.org, with a paragraph a line and a blank line after "
        "each article",
        folders=("wikipedia_en", "wikipedia"),
    ),
}


def check_part(split: str) -> None:
    """Refuses what is not one of `PARTS`."""
    if split not in PARTS:
        raise ValueError(f"{split!r} is not one of the splits {', '.join(PARTS)}")


def data_root(name: str, root: str | Path | None, origin: str) -> Path:
    """The folder of data sets: the one given, or that of the environment variable LLN_DATA."""
    given = root or os.environ.get("LLN_DATA")
    if not given:
        raise ValueError(
            f"{name!r} needs a folder of data sets: give root or set LLN_DATA; {origin}"
        )
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{name!r}: the root {folder} is not a folder")
    return folder


def find(name: str, corpus: Corpus, root: Path, split: str) -> list[Path]:
    """The files of a split, several where it is published in parts."""
    if split not in SPLITS:
        raise ValueError(f"{split!r} is not one of the splits {', '.join(SPLITS)}")
    for pattern in corpus.patterns:
        for folder in corpus.folders:
            for written in SPLITS[split]:
                for compression in COMPRESSIONS:
                    path = pattern.format(split=written) + compression
                    if paths := sorted((root / folder).glob(path)):
                        return paths
    expected = ", ".join(pattern.format(split="<split>") for pattern in corpus.patterns)
    places = " or ".join(str(root / folder) for folder in corpus.folders)
    raise ValueError(
        f"{name!r} has no {split} file in {places}: expected one of {expected}, also with .gz or "
        f".xz, where <split> is {' or '.join(SPLITS[split])}; {corpus.origin}"
    )
