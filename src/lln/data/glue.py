"""Tasks of GLUE (Wang et al. 2019, arXiv 1804.07461): files, labels, features and scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value, concatenate_datasets
from numpy.typing import ArrayLike
from transformers import PreTrainedTokenizerFast

from lln.data.locating import Corpus, find
from lln.data.progress import tracked
from lln.data.reading import format_of, read_parquet
from lln.data.tables import read_rows

ORIGIN = "get it from https://gluebenchmark.com/tasks, or open 'hub:nyu-mll/glue:{name}'"
# Names in the official files, where they differ from the hub's, which are used here.
OFFICIAL = {"premise": "sentence1", "hypothesis": "sentence2"}
LABELS = ("label", "gold_label", "is_duplicate")
ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Task:
    """A task to classify sentences or pairs of them.

    Attributes:
        corpus: Its files.
        sentences: Names of the one or two columns of text.
        labels: Their names; the place is the number.
        metrics: What is reported, the first one first.
        broken_rows: Whether official files have rows that cannot be read, to be left out.
    """

    corpus: Corpus
    sentences: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    broken_rows: bool = False


def _files(name: str, folder: str) -> Corpus:
    plain = (f"{name}_{{split}}.tsv", f"{name}_{{split}}_subset.tsv", f"{name}_{{split}}10k.tsv")
    return Corpus(
        (*plain, f"{folder}/{{split}}.tsv", f"{name}/{{split}}-*-of-*.parquet"),
        ORIGIN.format(name=name),
        folders=(".", "glue", "glue_data"),
    )


TASKS = {
    "sst2": Task(_files("sst2", "SST-2"), ("sentence",), ("negative", "positive")),
    "qnli": Task(
        _files("qnli", "QNLI"), ("question", "sentence"), ("entailment", "not_entailment")
    ),
    "mnli": Task(
        _files("mnli", "MNLI"),
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
    ),
    "qqp": Task(
        _files("qqp", "QQP"),
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        broken_rows=True,
    ),
}


def read(name: str, root: Path, split: str) -> Dataset:
    """The sentences of a task and their `label`, from official, plain or Parquet files."""
    if split == "test":
        raise ValueError(f"{name!r}: GLUE does not publish the labels of test, so use valid")
    task = TASKS[name]
    columns: dict[str, list[Any]] = {column: [] for column in (*task.sentences, "label")}
    for path in find(name, task.corpus, root, split):
        for place, row in _rows(path, task):
            for column in task.sentences:
                columns[column].append(_cell(path, row, (column, OFFICIAL.get(column, column))))
            label = str(_cell(path, row, LABELS))
            if label not in task.labels and label not in map(str, range(len(task.labels))):
                raise ValueError(
                    f"{path} {place}: unknown label {label!r}, expected {', '.join(task.labels)}"
                    f" or 0 to {len(task.labels) - 1}"
                )
            columns["label"].append(
                task.labels.index(label) if label in task.labels else int(label)
            )
    kinds = dict.fromkeys(task.sentences, Value("string"))
    return Dataset.from_dict(
        columns, Features({**kinds, "label": ClassLabel(names=list(task.labels))})
    )


def encode(
    task: str, dataset: Dataset, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> Dataset:
    """Token ids of the sentence, or of both as RoBERTa joins them, and `labels`.

    Args:
        task: A name of `TASKS`.
        dataset: As `open_dataset` gives it.
        tokenizer: Joins pairs by its own rule.
        max_length: Tokens at most; the longer sentence of a pair loses its end first.
    """
    if task not in TASKS:
        raise ValueError(f"{task!r} is not one of the tasks {', '.join(TASKS)}")
    sentences, parts = TASKS[task].sentences, []
    specials = tokenizer.num_special_tokens_to_add(pair=len(sentences) == 2)
    if max_length <= specials:
        raise ValueError(
            f"max_length {max_length} leaves no place for words beside {specials} special tokens"
        )
    rows = dataset.iter(ROWS_AT_ONCE)
    for batch in tracked(rows, f"tokenising {task}", total=-(-len(dataset) // ROWS_AT_ONCE)):
        features = tokenizer(
            *(batch[column] for column in sentences),
            truncation=True,
            max_length=max_length,
            split_special_tokens=True,  # a sentence that spells one does not end there
        )
        columns = {name: features[name] for name in ("input_ids", "attention_mask")}
        parts.append(Dataset.from_dict({**columns, "labels": batch["label"]}))
    return concatenate_datasets(parts)


def scores(task: str, predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The metrics of a task, of predicted classes and true ones."""
    predicted, true = np.asarray(predictions), np.asarray(labels)
    hits = int(((predicted == 1) & (true == 1)).sum())
    found = {
        "accuracy": float((predicted == true).mean()),
        # 2 TP / (2 TP + FP + FN), and 0 where nothing is or is called a duplicate.
        "f1": 2 * hits / max(1, int((predicted == 1).sum() + (true == 1).sum())),
    }
    return {metric: found[metric] for metric in TASKS[task].metrics}


def _cell(path: Path, row: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"{path} has no column {names[0]!r}: it has {', '.join(row)}")


def _rows(path: Path, task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    if format_of(path) != ".parquet":
        yield from read_rows(path, leave_out_broken=task.broken_rows)
        return
    for number, row in enumerate(read_parquet(path).to_pylist(), 1):
        yield f"row {number}", row
