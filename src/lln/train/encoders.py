"""The encoder of a run: sizes and mixer from the experiment, the rest from what it reads."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from lln.models import EncoderConfig
from lln.train.config import Run


def encoder_config(run: Run, **others: Any) -> EncoderConfig:
    """The configuration of a run's model; `others` come from its data."""
    return EncoderConfig(
        mixer=run.mixer.name,
        mixer_options=run.mixer.options,
        **vars(run.experiment.model),
        **others,
    )


def of_tokens(tokenizer: PreTrainedTokenizerFast, length: int) -> dict[str, Any]:
    """What a configuration says of the tokens, of which a sequence has `length` at most."""
    return {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": positions(length, tokenizer.pad_token_id),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def positions(length: int, padding: int) -> int:
    """As in RoBERTa, places are counted from the one after the padding's."""
    return length + padding + 1


def of_classes(names: Sequence[str]) -> dict[str, Any]:
    """What a configuration says of the classes."""
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
