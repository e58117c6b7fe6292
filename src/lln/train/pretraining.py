"""Masked language modelling as RoBERTa's (Liu et al. 2019, arXiv 1907.11692)."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Subset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lln.data import MaskingCollator, load_tokenizer, open_dataset, pack, train_tokenizer
from lln.models import EncoderForMaskedLM
from lln.train.config import Pretraining, Run
from lln.train.encoders import encoder_config, of_tokens
from lln.train.inputs import Texts
from lln.train.order import TURN
from lln.train.session import Material

EVALUATION_SEED = 0  # the same masks for all runs, which are then comparable


def prepare(run: Run) -> Material:
    """Tokens of a corpus, and an encoder that predicts some of them."""
    experiment = run.experiment
    assert isinstance(experiment, Pretraining)
    data = experiment.data
    texts = open_dataset(data.dataset, root=data.root, split="train")
    held_out = open_dataset(data.dataset, root=data.root, split="valid")
    tokenizer = tokenizer_of(data, texts)
    evaluation = pack(held_out, tokenizer, data.length)
    wanted = data.eval_examples or len(evaluation)

    def build() -> PreTrainedModel:
        return EncoderForMaskedLM(encoder_config(run, **of_tokens(tokenizer, data.length)))

    return Material(
        tokenizer=tokenizer,
        examples=pack(texts, tokenizer, data.length),
        evaluation=Subset(evaluation, range(min(wanted, len(evaluation)))),
        collate=MaskPasses(tokenizer, seed=run.seed, share=data.mask_probability),
        build=build,
        reduce=sums,
        score=means,
        best="loss",
    )


def tokenizer_of(data: Texts, texts: Any) -> PreTrainedTokenizerFast:
    """The tokenizer that the configuration names, trained on the texts if it is to be."""
    if data.tokenizer == "bpe":
        return train_tokenizer(texts, vocab_size=data.vocab_size)
    return load_tokenizer(data.tokenizer)


class MaskPasses:
    """Masks a batch, anew in every pass over the data; evaluation always alike.

    A batch may hold the end of one pass and the beginning of the next.

    Args:
        tokenizer: that made the tokens.
        seed: of the masks of training.
        share: of the tokens to predict.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, seed: int, share: float) -> None:
        self._tokenizer, self._seed, self._share = tokenizer, seed, share
        self._maskers: dict[int | None, MaskingCollator] = {}

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        parts = [
            self._masker(turn)(list(group))
            for turn, group in groupby(examples, key=lambda example: example.get(TURN))
        ]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    def _masker(self, turn: int | None) -> MaskingCollator:
        if turn not in self._maskers:
            # One for each pass, since a masker's own epoch is shared by all workers.
            seed = EVALUATION_SEED if turn is None else self._seed
            masker = MaskingCollator(self._tokenizer, seed=seed, share=self._share)
            if turn is not None:
                masker.set_epoch(turn)
                self._maskers.pop(turn - 2, None)
            self._maskers[turn] = masker
        return self._maskers[turn]


def sums(logits: Tensor, labels: Tensor) -> Tensor:
    """`(B, 3)`: loss, right predictions and labels of each sequence."""
    loss = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")  # (B, N)
    wanted = labels != -100
    right = (logits.argmax(2) == labels) & wanted
    return torch.stack([x.double().sum(1) for x in (loss, right, wanted)], dim=1)


def means(prediction: Any) -> dict[str, float]:
    """Loss and accuracy over all labels, however they are spread over sequences and batches."""
    loss, right, wanted = np.asarray(prediction.predictions).sum(0)
    return {"loss": loss / wanted, "accuracy": right / wanted}
