"""The tasks of the Long Range Arena (Tay et al. 2021, arXiv 2011.04006).

Two texts of a pair go through one encoder; a picture is a sequence of its pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lln.data import (
    Images,
    PixelTokens,
    encode_sequences,
    generate_listops,
    generate_pathfinder,
    load_tokenizer,
    open_dataset,
    open_images,
)
from lln.models import (
    EncoderForSequenceClassification,
    EncoderForSequenceMatching,
)
from lln.train.classification import accuracy, choices, sample, stack
from lln.train.config import Arena, Run
from lln.train.encoders import encoder_config, of_classes, of_tokens, positions
from lln.train.inputs import Sequences
from lln.train.order import Examples
from lln.train.session import Material

SPLITS = ("train", "valid", "test")
PADDING = 1  # the id that every vocabulary here keeps for it


@dataclass(frozen=True)
class TextTask:
    """A task on texts, or on pairs of them.

    Attributes:
        dataset: name of its files.
        tokenizer: that cuts them.
        classes: names of the labels.
        length: of LRA, in tokens.
    """

    dataset: str
    tokenizer: str
    classes: tuple[str, ...]
    length: int


TEXTS = {
    "listops": TextTask("listops", "listops", tuple("0123456789"), 2000),
    "text": TextTask("imdb", "bytes", ("negative", "positive"), 4000),
    "retrieval": TextTask("aan", "bytes", ("unrelated", "cites"), 4000),
}
PICTURES = {"image": "cifar10_gray", "pathfinder": "pathfinder32", "pathx": "pathfinder128"}
# What LRA has where it is generated.
SHORTEST = 500
EXPRESSIONS = {"train": 96_000, "valid": 2_000, "test": 2_000}
PATHS = {"train": 160_000, "valid": 20_000, "test": 20_000}


def prepare(run: Run) -> Material:
    """Sequences of a task, and an encoder with a head for it."""
    experiment = run.experiment
    assert isinstance(experiment, Arena)
    return (_of_texts if experiment.task in TEXTS else _of_pictures)(run, experiment)


def _of_texts(run: Run, experiment: Arena) -> Material:
    data, task = experiment.data, TEXTS[experiment.task]
    length = data.length or task.length
    tokenizer = load_tokenizer(task.tokenizer)
    train, valid, test = (
        encode_sequences(_texts(experiment.task, data, split, length), tokenizer, length)
        for split in SPLITS
    )
    head = (
        EncoderForSequenceMatching
        if "other_input_ids" in train.column_names
        else (EncoderForSequenceClassification)
    )

    def build() -> PreTrainedModel:
        sizes = of_tokens(tokenizer, length)
        return head(encoder_config(run, **sizes, **of_classes(task.classes)))

    return Material(
        examples=train,
        evaluation=valid,
        collate=PadSequences(tokenizer),
        build=build,
        reduce=choices,
        score=accuracy,
        best="accuracy",
        tokenizer=tokenizer,
        test=test,
    )


def _texts(task: str, data: Sequences, split: str, length: int) -> Dataset:
    count = _counts(data)[split]
    if data.generator_seed is not None:
        return generate_listops(
            count or EXPRESSIONS[split],
            seed=data.generator_seed,
            split=split,
            lengths=(data.shortest or SHORTEST, length),
        )
    texts = open_dataset(TEXTS[task].dataset, root=data.root, split=split)
    return texts.select(sample(count, len(texts)))


def _of_pictures(run: Run, experiment: Arena) -> Material:
    data = experiment.data
    found = {split: _pictures(experiment.task, data, split) for split in SPLITS}
    train, valid, test = (
        _some(PixelTokens(images), _counts(data)[split]) for split, images in found.items()
    )
    _, height, width, _ = found["train"].pixels.shape  # (images, H, W, 1)

    def build() -> PreTrainedModel:
        return EncoderForSequenceClassification(
            encoder_config(
                run,
                vocab_size=PixelTokens.vocab_size,
                max_position_embeddings=positions(height * width, PADDING),
                pad_token_id=PADDING,
                **of_classes(found["train"].classes),
            )
        )

    return Material(
        examples=train,
        evaluation=valid,
        collate=stack,
        build=build,
        reduce=choices,
        score=accuracy,
        best="accuracy",
        test=test,
    )


def _pictures(task: str, data: Sequences, split: str) -> Images:
    if data.generator_seed is None:
        return open_images(PICTURES[task], root=data.root, split=split)
    count = _counts(data)[split] or PATHS[split]
    return generate_pathfinder(count, seed=data.generator_seed, name=PICTURES[task], split=split)


def _counts(data: Sequences) -> dict[str, int]:
    return dict(
        zip(SPLITS, (data.train_examples, data.eval_examples, data.test_examples), strict=True)
    )


def _some(examples: PixelTokens, count: int) -> Examples:
    return Subset(examples, sample(count, len(examples)))


class PadSequences:
    """Makes a batch of sequences, or of pairs of them, of different lengths.

    Args:
        tokenizer: that made the tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._padding = tokenizer.pad_token_id

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        batch = {"labels": torch.tensor([example["labels"] for example in examples])}  # (B,)
        for prefix in ("", "other_"):
            if f"{prefix}input_ids" in examples[0]:
                rows = [torch.tensor(example[f"{prefix}input_ids"]) for example in examples]
                ids = pad_sequence(rows, batch_first=True, padding_value=self._padding)  # (B, N)
                batch[f"{prefix}input_ids"] = ids
                batch[f"{prefix}attention_mask"] = (ids != self._padding).long()
        return batch
