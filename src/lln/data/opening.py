"""`open_dataset`: one name for every text that experiments use."""

import os
from pathlib import Path

from datasets import Dataset, concatenate_datasets

from lln.data import glue, hub
from lln.data.locating import CORPORA, FOLDER, Corpus, find
from lln.data.reading import format_of, read_texts

SHARES = {"train": (0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1)}  # of the rows of a file
FORMATS = (".txt", ".raw", ".tokens", ".jsonl", ".parquet")


def open_dataset(name: str, *, root: str | Path | None = None, split: str = "train") -> Dataset:
    """Opens a corpus (column `text`) or a task of GLUE (its sentences and `label`).

    Args:
        name: `"bundled"`, `"wikitext2"`, `"wikitext103"`, `"wikipedia"`; `"sst2"`, `"qnli"`,
            `"mnli"`, `"qqp"`; the path of a .txt, .jsonl or .parquet file (also .gz or .xz), of
            which the first 90 % are train, 5 % valid and 5 % test, or of a folder with one for each
            split; `"hub:owner/name"` or `"hub:owner/name:config"`.
        root: Folder of the named data sets; the environment variable LLN_DATA by default.
        split: `"train"`, `"valid"` or `"test"`; MNLI has `"valid_mismatched"` too.
    """
    below_root = name in glue.TASKS or (name in CORPORA and CORPORA[name].root is None)
    if root is not None and not below_root:
        raise ValueError(f"{name!r} is not looked for below a root: leave root {str(root)!r} out")
    if name.startswith("hub:"):
        return hub.load(name, split)
    if name in glue.TASKS:
        corpus = glue.TASKS[name].corpus
        return glue.read(name, _root(name, corpus, root), split)
    if name in CORPORA:
        corpus = CORPORA[name]
        return _texts(find(name, corpus, _root(name, corpus, root), split))
    path = Path(name).expanduser()
    return _texts(find(name, FOLDER, path, split)) if path.is_dir() else _share(path, split)


def _texts(paths: list[Path]) -> Dataset:
    return concatenate_datasets([read_texts(path) for path in paths])


def _root(name: str, corpus: Corpus, root: str | Path | None) -> Path:
    root = corpus.root or root or os.environ.get("LLN_DATA")
    if not root:
        raise ValueError(
            f"{name!r} needs a folder of data sets: give root or set LLN_DATA; {corpus.origin}"
        )
    return Path(root).expanduser()


def _share(path: Path, split: str) -> Dataset:
    if format_of(path) not in FORMATS:
        known = ", ".join([*CORPORA, *glue.TASKS])
        raise ValueError(
            f"'{path}' is no data set: expected one of {known}, hub:owner/name, a folder, "
            f"or a file with {', '.join(FORMATS)}, also with .gz or .xz"
        )
    texts = read_texts(path)
    start, end = (int(share * len(texts)) for share in SHARES.get(split, (0, 0)))
    if start == end:
        raise ValueError(
            f"'{path}' is one file of {len(texts)} rows, which gives no split {split!r}: "
            "give a folder with a file for each split"
        )
    return texts.select(range(start, end))
