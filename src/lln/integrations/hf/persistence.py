"""Models that are saved with their attention and loaded with it.

`save_pretrained` writes what `note` leaves in the configuration: `lln_attention`, the core and its
options, and `attn_implementation`, which transformers reads back. Without this package that name is
unknown to it, and loading fails instead of running softmax attention on weights that were made for
another. The cores' parameters and statistics are part of the model, so its safetensors hold them.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GenerationMixin,
    PreTrainedModel,
)

from lln.attention.saving import finish_loading, from_json, to_json
from lln.integrations.hf.attention import NAME, attend
from lln.integrations.hf.cache import with_states
from lln.integrations.hf.cores import all_layers, attach, build_cores, start
from lln.integrations.hf.masks import key_masks

KEY = "lln_attention"
VERSION = 1


def note(config: Any, name: str, options: dict[str, Any]) -> None:
    """Writes into a model's configuration which attention it has."""
    setattr(config, KEY, {"name": name, "options": to_json(options), "version": VERSION})
    config.attn_implementation = NAME


def noted(config: Any) -> tuple[str, dict[str, Any]] | None:
    """The core and its options that a configuration asks for; None if it is an ordinary one."""
    found = getattr(config, KEY, None)
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f"config.{KEY} is not of version {VERSION}, which this lln reads: {found}")
    return found["name"], from_json(found["options"])


def register() -> None:
    """Makes the attention, its masks, its states and its persistence known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, key_masks)
    PreTrainedModel.post_init = _rebuilding(PreTrainedModel.post_init)
    PreTrainedModel.initialize_weights = _starting(PreTrainedModel.initialize_weights)
    GenerationMixin._prepare_cache_for_generation = with_states(
        GenerationMixin._prepare_cache_for_generation
    )
    PreTrainedModel.from_pretrained = classmethod(
        _checking(PreTrainedModel.from_pretrained.__func__)
    )


def load(folder: str | Path, **options: Any) -> Any:
    """A model as it was saved, with its class and its attention, for evaluation.

    Args:
        folder: where `save_pretrained` wrote, or a name on the hub.
        options: of transformers' `from_pretrained`, such as `dtype`.

    Raises:
        ValueError: there is no such model, or its files are damaged.
    """
    from safetensors import SafetensorError

    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        if noted(config) is None:
            raise ValueError(
                "its config names no attention of lln; load it by transformers' from_pretrained "
                "and call lln.hf.apply"
            )
        kind = (config.architectures or ["a model without architecture"])[0]
        if not hasattr(transformers, kind):
            raise ValueError(f"transformers {transformers.__version__} has no {kind}")
        # A pickle can run code.
        return getattr(transformers, kind).from_pretrained(
            folder, **{"attn_implementation": NAME, **options, "use_safetensors": True}
        )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"cannot load {folder}: {reason}") from error


def _rebuilding(post_init: Callable[..., None]) -> Callable[..., None]:
    """Builds the cores that a configuration asks for, before a checkpoint fills them."""

    @functools.wraps(post_init)
    def rebuild(model: Any) -> None:
        asked = noted(model.config)
        if asked is not None:
            model.config.attn_implementation = NAME  # loading takes it away, and saving needs it
            # The layers of its parts have their cores already.
            bare = [x for x in all_layers(model) if not hasattr(x, "attention_core")]
            attach(build_cores(bare, *asked))
        post_init(model)

    return rebuild


def _starting(initialize_weights: Callable[..., None]) -> Callable[..., None]:
    """Gives cores their first values; the model knows of its own weights alone."""

    @functools.wraps(initialize_weights)
    def initialize(model: Any) -> None:
        asked = noted(model.config)
        if asked is not None:
            start([x for x in all_layers(model) if hasattr(x, "attention_core")], *asked)
        initialize_weights(model)

    return initialize


def _checking(from_pretrained: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses weights and a configuration that do not belong together."""

    @functools.wraps(from_pretrained)
    def check(cls: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        model, info = from_pretrained(cls, *args, output_loading_info=True, **kwargs)
        finish_loading(model, "attention_core.", info)
        runs = model.config._attn_implementation
        if noted(model.config) and runs != NAME and kwargs.get("attn_implementation") is None:
            # Whoever edited the config, or asked an auto class, may have meant it.
            warnings.warn(
                f"{cls.__name__} was saved with lln attention and runs {runs!r} attention: "
                f"pass attn_implementation={NAME!r} unless that is meant",
                stacklevel=2,
            )
        return (model, info) if output_loading_info else model

    return check
