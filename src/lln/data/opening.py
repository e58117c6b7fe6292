"""`open_dataset`: one name for every text that experiments use."""

from pathlib import Path

from datasets import Dataset, concatenate_datasets

from lln.data import citations, glue, hub, images, listops, reviews
from lln.data.locating import CORPORA, FOLDER, Corpus, data_root, find
from lln.data.reading import format_of, read_texts

SHARES = {"train": (0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1)}  # of the rows of a file
# Tasks of the Long Range Arena, which have readers of their own.
ARENA = {
    "imdb": (reviews.CORPUS, reviews.read),
    "aan": (citations.CORPUS, citations.read),
    **{name: (corpus, listops.read) for name, corpus in listops.CORPORA.items()},
}
FORMATS = (".txt", ".raw", ".tokens", ".jsonl", ".parquet")


def open_dataset(name: str, *, root: str | Path | None = None, split: str = "train") -> Dataset:
    """Opens a corpus (column `text`) or a task (its texts and `label`); images: `open_images`.

    Args:
        name: `"bundled"`, `"wikitext2"`, `"wikitext103"`, `"wikipedia"`; `"sst2"`, `"qnli"`,
            `"mnli"`, `"qqp"`; `"imdb"`, `"aan"`, `"listops"`, `"listops_d20s"`; the path of a
            .txt, .jsonl or .parquet file (also .gz or .xz), of which the first 90 % are train, 5 %
            valid and 5 % test, or of a folder with one for each split; `"hub:owner/name"` or
            `"hub:owner/name:config"`.
        root: Folder of the named data sets; the environment variable LLN_DATA by default.
        split: `"train"`, `"valid"` or `"test"`; MNLI has `"valid_mismatched"` too.
    """
    if name in images.ORIGINS:
        raise ValueError(f"{name!r} is a set of images: use open_images")
    below_root = (
        name in glue.TASKS or name in ARENA or (name in CORPORA and CORPORA[name].root is None)
    )
    if root is not None and not below_root:
        raise ValueError(f"{name!r} is not looked for below a root: leave root {str(root)!r} out")
    if name.startswith("hub:"):
        return hub.load(name, split)
    if name in glue.TASKS:
        corpus = glue.TASKS[name].corpus
        return glue.read(name, _root(name, corpus, root), split)
    if name in ARENA:
        corpus, read = ARENA[name]
        return read(name, _root(name, corpus, root), split)
    if name in CORPORA:
        corpus = CORPORA[name]
        return _texts(find(name, corpus, _root(name, corpus, root), split))
    path = Path(name).expanduser()
    return _texts(find(name, FOLDER, path, split)) if path.is_dir() else _share(path, split)


def _texts(paths: list[Path]) -> Dataset:
    return concatenate_datasets([read_texts(path) for path in paths])


def _root(name: str, corpus: Corpus, root: str | Path | None) -> Path:
    return corpus.root or data_root(name, root, corpus.origin)


def _share(path: Path, split: str) -> Dataset:
    if format_of(path) not in FORMATS:
        known = ", ".join([*CORPORA, *glue.TASKS, *ARENA])
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
