"""The model that is converted, from a folder."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from lln.integrations.hf.persistence import noted


def load_original(folder: Path) -> tuple[Any, Any]:
    """A model for evaluation, of the class that it was saved as, and its tokenizer.

    Raises:
        ValueError: it cannot be loaded, or is not one to convert.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        if noted(config) is not None:
            raise ValueError("it has an attention of lln already; convert the original")
        kind = (config.architectures or ["a model without architecture"])[0]
        if not hasattr(transformers, kind):
            raise ValueError(f"transformers {transformers.__version__} has no {kind}")
        # A pickle can run code.
        model = getattr(transformers, kind).from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True
        )
        if model.main_input_name != "input_ids":
            raise ValueError(f"{kind} reads {model.main_input_name}, and only text can be learned")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"cannot convert {folder}: {reason}") from error
    return model.eval(), tokenizer
