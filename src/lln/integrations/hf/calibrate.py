"""Statistics of data, stored in the model that will read such data."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lln.integrations.hf.probe import evaluating
from lln.matching import calibrating


def calibrate(model: Any, batches: Iterable[Mapping[str, Any] | Tensor]) -> Any:
    """Fills the stored statistics of a model's LLN attention from data, and returns the model.

    Causal attention and `Matching(statistics="frozen")` take α and β from them. What was stored
    before is replaced; nothing else of the model changes.

    Args:
        model: after `apply`, or loaded.
        batches: arguments of the model's `forward`, or token ids; a few dozen sequences will do.
            They are moved to the model's device.

    Raises:
        ValueError: no batches, or no LLN attention that stores statistics.

    Example:
        lln.hf.calibrate(model, [tokenizer(text, return_tensors="pt") for text in texts])
    """
    seen = 0
    with calibrating(model), evaluating(model), torch.no_grad():
        for batch in batches:
            inputs = {model.main_input_name: batch} if isinstance(batch, Tensor) else batch
            on_device = {
                name: x.to(model.device) if isinstance(x, Tensor) else x
                for name, x in inputs.items()
            }
            model(**on_device)
            seen += 1
    if seen == 0:
        raise ValueError("batches is empty: calibrating needs data")
    return model
