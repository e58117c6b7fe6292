"""How much text a model of transformers can read at once."""

from typing import Any

UNLIMITED = 2**31


def longest_input(model: Any) -> int:
    """How many positions a model knows; RoBERTa and its kin keep the first ones for padding."""
    known = getattr(model.config, "max_position_embeddings", None)
    if known is None:
        return UNLIMITED
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    reserved = getattr(table, "padding_idx", None)
    return int(known) - (0 if reserved is None else reserved + 1)
