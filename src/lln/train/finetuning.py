"""Classification of sentences and pairs of them: four tasks of GLUE."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoConfig,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from lln.data import TASKS, encode, load_tokenizer, open_dataset, scores
from lln.models import EncoderConfig, EncoderForSequenceClassification
from lln.train.classification import choices
from lln.train.config import Finetuning, Model, Run
from lln.train.encoders import encoder_config, of_classes, of_tokens
from lln.train.order import TURN
from lln.train.pretraining import tokenizer_of
from lln.train.session import Material
from lln.train.trainer import BEST


def prepare(run: Run) -> Material:
    """Sentences of a task, and an encoder with a head for it."""
    experiment = run.experiment
    assert isinstance(experiment, Finetuning)
    data = experiment.data
    labels = TASKS[data.task].labels
    texts = open_dataset(data.task, root=data.root, split="train")
    held_out = open_dataset(data.task, root=data.root, split="valid")
    folder = pretrained_folder(run)
    head = of_classes(labels)
    tokenizer = (
        tokenizer_of(data, _sentences(data.task, texts))
        if folder is None
        else load_tokenizer(folder)
    )

    def build() -> PreTrainedModel:
        if folder is None:
            tokens = of_tokens(tokenizer, data.length)
            return EncoderForSequenceClassification(encoder_config(run, **tokens, **head))
        return EncoderForSequenceClassification.from_pretrained(folder, **head)

    def score(prediction: Any) -> dict[str, float]:
        loss, chosen = np.asarray(prediction.predictions).T
        return {"loss": float(loss.mean()), **scores(data.task, chosen, prediction.label_ids)}

    return Material(
        tokenizer=tokenizer,
        examples=encode(data.task, _first(texts, data.train_examples), tokenizer, data.length),
        evaluation=encode(data.task, _first(held_out, data.eval_examples), tokenizer, data.length),
        collate=Pad(tokenizer),
        build=build,
        reduce=choices,
        score=score,
        best=TASKS[data.task].metrics[0],
    )


def pretrained_folder(run: Run) -> Path | None:
    """The model that a run starts from."""
    experiment = run.experiment
    assert isinstance(experiment, Finetuning)
    if experiment.pretrained is None:
        return None
    given = Path(experiment.pretrained).expanduser()
    folder = given if (given / "config.json").is_file() else given / run.folder.name / BEST
    if not (folder / "config.json").is_file():
        runs = ", ".join(sorted(path.parent.name for path in given.glob(f"*/{BEST}"))) or "no model"
        raise ValueError(
            f"pretrained={given} has no model for {run.folder.name}: expected a model's folder "
            f"with config.json, or an experiment's, and found {runs}"
        )
    _check(run, folder, experiment.data.length)
    return folder


def _check(run: Run, folder: Path, length: int) -> None:
    """Refuses a model that is not what the run says."""
    config = AutoConfig.from_pretrained(folder)
    if not isinstance(config, EncoderConfig):
        raise ValueError(f"{folder} holds a {config.model_type} model, not one of lln pretrain")
    wanted = {"mixer": run.mixer.name, "mixer_options": run.mixer.options}
    if run.experiment.model != Model():
        wanted |= vars(run.experiment.model)
    differing = [
        f"{key} ({getattr(config, key)!r} there, {value!r} here)"
        for key, value in wanted.items()
        if getattr(config, key) != value
    ]
    if differing:
        raise ValueError(f"{folder} holds a model with other values of {'; '.join(differing)}")
    if length > config.max_len:
        raise ValueError(
            f"length={length} is more than the {config.max_len} tokens that "
            f"{folder} has positions for"
        )


class Pad:
    """Makes a batch of examples of different lengths.

    Args:
        tokenizer: that made the tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = self._pad(
            [{key: example[key] for key in example if key != TURN} for example in examples]
        )
        return batch


def _first(dataset: Dataset, count: int) -> Dataset:
    return dataset.select(range(min(count, len(dataset)))) if count else dataset


def _sentences(task: str, dataset: Dataset) -> Dataset:
    """A corpus for a tokenizer."""
    return Dataset.from_dict(
        {"text": [text for column in TASKS[task].sentences for text in dataset[column]]}
    )
