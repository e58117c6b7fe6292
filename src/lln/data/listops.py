"""ListOps: the value of nested lists of digits (Nangia and Bowman 2018, arXiv 1804.06028).

Generated as for the Long Range Arena (Tay et al. 2021, lra_benchmarks/data/listops.py): a place is
an operator with probability ¼, a digit otherwise and at the greatest depth; an operator is one of
four and has 2 to 10 arguments; expressions of other lengths than those wanted are thrown away.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import numpy as np
from datasets import Dataset, Features, Value

from lln.data.cache import cached
from lln.data.locating import RELEASES, Corpus, check_part, find
from lln.data.parallel import mapped
from lln.data.tables import read_rows
from lln.data.tokenizers import LISTOPS

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
DIGITS = tuple("0123456789")
OPERATOR_SHARE = 0.25
ATTEMPTS = 100_000  # of which one in a few hundred fits LRA's lengths
WORTH_A_PROCESS = 10_000

CORPORA = {
    "listops": Corpus(
        ("basic_{split}.tsv",),
        "make it with lln.data.generate_listops, as LRA's own link is broken",
        folders=(".", "listops", *(f"{release}listops-1000" for release in RELEASES)),
    ),
    # The test file of the first paper, whose expressions are short.
    "listops_d20s": Corpus(
        ("listops_d20s_10k.tsv", "test_d20s.tsv"),
        "get test_d20s.tsv from https://github.com/nyu-mll/spinn",
        folders=(".", "listops"),
    ),
}


def read(name: str, root: Path, split: str) -> Dataset:
    """Expressions (column `text`), without the brackets of the binary tree, and their `label`."""
    if name == "listops_d20s" and split != "test":
        raise ValueError(f"{name!r} has no split {split!r}: it is a test set")
    (path,) = find(name, CORPORA[name], root, split)
    return _read(path)


def generate_listops(
    size: int,
    *,
    seed: int,
    split: str = "train",
    lengths: tuple[int, int] = (500, 2000),
    depth: int = 10,
    arguments: int = 10,
    cache: str | Path | None = None,
) -> Dataset:
    """Makes expressions, or finds them where this was done before; columns `text` and `label`.

    An example depends on the seed, the split and its index alone: more of them start with the same
    ones, and several processes make the same as one.

    Args:
        size: Number of examples; LRA has 96,000 for train and 2,000 for valid and test.
        seed: Of all splits.
        split: `"train"`, `"valid"` or `"test"`.
        lengths: An expression has more tokens than the first and fewer than the second.
        depth: Of the tree at most; an expression of one digit has 1.
        arguments: Of an operator at most.
        cache: Folder for the examples; `$XDG_CACHE_HOME/lln` by default.
    """
    check_part(split)
    if size < 1 or arguments < 2 or depth < 1:
        raise ValueError(
            f"size {size}, depth {depth} and arguments {arguments} must be at least 1, 1 and 2"
        )
    make = partial(_example, seed, split, lengths, depth, arguments)

    def save(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write("Source\tTarget\n")
            rows = mapped(make, range(size), "making ListOps", total=size, least=WORTH_A_PROCESS)
            file.writelines(f"{text}\t{value}\n" for text, value in rows)

    settings = f"listops 1 {size} {seed} {split} {lengths} {depth} {arguments}"
    return _read(cached("listops.tsv", [settings], save, folder=cache))


class ListOpsStatistics(NamedTuple):
    """What expressions are like; a length counts operators, digits and closing brackets."""

    examples: int
    mean_length: float
    median_length: float
    shortest: int
    longest: int
    mean_depth: float
    deepest: int
    mean_arguments: float
    label_shares: tuple[float, ...]


def listops_statistics(texts: Dataset) -> ListOpsStatistics:
    """Lengths, depths and labels of a data set that `generate_listops` or `open_dataset` gave."""
    lengths, depths, operators, nodes = [], [], 0, 0
    for text in texts["text"]:
        tokens = text.split()
        steps = [(token in OPERATORS) - (token == "]") for token in tokens]
        lengths.append(len(tokens))
        # Within an expression the digits of the innermost list are one level deeper.
        depths.append(int(np.cumsum(steps).max()) + 1)
        operators += steps.count(1)
        nodes += steps.count(1) + steps.count(0)
    counts = np.bincount(texts["label"], minlength=len(DIGITS))
    return ListOpsStatistics(
        examples=len(lengths),
        mean_length=float(np.mean(lengths)),
        median_length=float(np.median(lengths)),
        shortest=min(lengths),
        longest=max(lengths),
        mean_depth=float(np.mean(depths)),
        deepest=max(depths),
        # Every node but the root of an expression is an argument.
        mean_arguments=(nodes - len(lengths)) / max(1, operators),
        label_shares=tuple((counts / counts.sum()).tolist()),
    )


def _example(
    seed: int, split: str, lengths: tuple[int, int], depth: int, arguments: int, index: int
) -> tuple[str, int]:
    draw = Random(f"{seed} {split} {index}")
    for _ in range(ATTEMPTS):
        tokens: list[str] = []
        value = _grow(draw, depth, arguments, lengths[1], tokens)
        if lengths[0] < len(tokens) < lengths[1]:
            return " ".join(tokens), value
    raise ValueError(
        f"none of {ATTEMPTS} expressions of depth {depth} with {arguments} arguments had more than "
        f"{lengths[0]} and fewer than {lengths[1]} tokens: choose other lengths"
    )


def _grow(draw: Random, depth: int, arguments: int, limit: int, tokens: list[str]) -> int:
    """Appends an expression to the tokens, and returns its value."""
    if len(tokens) >= limit:
        return 0  # it will be thrown away, so the rest is not worth the time
    if depth == 1 or draw.random() > OPERATOR_SHARE:
        digit = draw.choice(DIGITS)
        tokens.append(digit)
        return int(digit)
    operator = draw.choice(tuple(OPERATORS))
    tokens.append(operator)
    values = [
        _grow(draw, depth - 1, arguments, limit, tokens) for _ in range(draw.randint(2, arguments))
    ]
    tokens.append("]")
    return OPERATORS[operator](values)


def _read(path: Path) -> Dataset:
    rows = list(_rows(path))
    features = Features({"text": Value("string"), "label": Value("int64")})
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    return Dataset.from_dict(columns, features)


def _rows(path: Path) -> Iterator[tuple[str, int]]:
    for place, row in read_rows(path):
        text, label = (
            row.get("Source", row.get("expression")),
            row.get("Target", row.get("label")),
        )
        if text is None or label is None:
            raise ValueError(f"{path} has no columns Source and Target: it has {', '.join(row)}")
        tokens = text.replace("(", " ").replace(")", " ").split()
        if unknown := set(tokens) - set(LISTOPS):
            raise ValueError(f"{path} {place}: {min(unknown)!r} is no token of ListOps")
        if label not in DIGITS:
            raise ValueError(f"{path} {place}: the label {label!r} is not a digit")
        yield " ".join(tokens), int(label)
