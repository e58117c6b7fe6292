"""Pairs of papers, one of which cites the other or not: the retrieval task of the Long Range Arena.

LRA's own pairs are made from the ACL Anthology Network (Radev et al. 2013).
"""

import json
from collections.abc import Iterator
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Value

from lln.data.locating import RELEASES, SPLITS, Corpus, check_part, find
from lln.data.reading import read_lines
from lln.data.tables import read_rows

LABELS = ("unrelated", "cites")
VALUES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
RELEASE = ("label", "id1", "id2", "text1", "text2")

ORIGIN = "LRA's link is broken: make pairs.tsv and papers.jsonl as docs/data.md says"
CORPUS = Corpus(
    ("new_aan_pairs.{split}.tsv",),
    ORIGIN,
    folders=(".", "aan", *(f"{release}tsv_data" for release in RELEASES)),
)
PAIRS, PAPERS = (
    Corpus((file,), ORIGIN, folders=("aan_citation_pairs",))
    for file in ("pairs.tsv", "papers.jsonl")
)


def read(name: str, root: Path, split: str) -> Dataset:
    """Both texts (columns `text1` and `text2`) and their `label`."""
    check_part(split)
    if (root / "aan_citation_pairs").is_dir():
        rows = _joined(name, root, split)
    else:
        (path,) = find(name, CORPUS, root, split)
        rows = _release(path)
    columns: dict[str, list[object]] = {"text1": [], "text2": [], "label": []}
    for cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            columns[column].append(cell)
    if not columns["label"]:
        raise ValueError(f"{name!r} has no pairs for {split} below {root}")
    text = Value("large_string")  # papers are long, and an Arrow string column ends at 2 GB
    features = {"text1": text, "text2": text, "label": ClassLabel(names=list(LABELS))}
    return Dataset.from_dict(columns, Features(features))


def _release(path: Path) -> Iterator[tuple[str, str, int]]:
    for place, row in read_rows(path, RELEASE, leave_out_broken=True):
        yield row["text1"], row["text2"], _label(path, place, row["label"])


def _joined(name: str, root: Path, split: str) -> Iterator[tuple[str, str, int]]:
    (pairs,), (papers,) = (find(name, corpus, root, split) for corpus in (PAIRS, PAPERS))
    texts = {}
    for number, line in enumerate(read_lines(papers), 1):
        try:
            paper = json.loads(line)
            texts[paper["id"]] = paper["text"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f'{papers} line {number}: expected a JSON object such as {{"id": "…", "text": "…"}}'
            ) from None
    for place, row in read_rows(pairs):
        if not {"split", "label", "citing_id", "cited_id"} <= row.keys():
            raise ValueError(
                f"{pairs} has no columns split, label, citing_id, cited_id: it has {', '.join(row)}"
            )
        if row["split"] not in SPLITS[split]:
            continue
        ids = row["citing_id"], row["cited_id"]
        if missing := [paper for paper in ids if paper not in texts]:
            raise ValueError(f"{pairs} {place}: {papers.name} has no paper {missing[0]!r}")
        yield texts[ids[0]], texts[ids[1]], _label(pairs, place, row["label"])


def _label(path: Path, place: str, written: str) -> int:
    if written not in VALUES:
        raise ValueError(f"{path} {place}: unknown label {written!r}, expected 0 or 1")
    return VALUES[written]
