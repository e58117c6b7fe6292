"""Forward passes on token ids, whatever the kind of model."""

from typing import Any

import torch
from torch import Tensor


def inputs_of(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Arguments of the model's `forward`; a decoder reads the same text as its encoder."""
    ids = ids.to(model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    return inputs


def hidden_states(model: Any, ids: Tensor) -> Tensor:
    """`(B, N, C)` of the last layer."""
    states: Tensor = model.base_model(**inputs_of(model, ids))[0]
    return states
