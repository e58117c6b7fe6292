"""Models that are saved with their attention and loaded with it.

`save_pretrained` writes what `note` leaves in the configuration: `lln_attention`, the core and its
options, and `attn_implementation`, which transformers reads back. Without this package that name is
unknown to it, and loading fails instead of running softmax attention on weights that were made for
another. The cores' parameters and statistics are part of the model, so its safetensors hold them.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from lln.integrations.hf.attention import NAME, attend
from lln.integrations.hf.cache import generate_with_states
from lln.integrations.hf.cores import all_layers, attach, build_cores
from lln.integrations.hf.masks import key_masks
from lln.matching import Matching

KEY = "lln_attention"
VERSION = 1


def note(config: Any, name: str, options: dict[str, Any]) -> None:
    """Writes into a model's configuration which attention it has."""
    plain = {option: asdict(x) if isinstance(x, Matching) else x for option, x in options.items()}
    try:
        json.dumps(plain)
    except TypeError as error:
        raise ValueError(f"an option cannot be saved with the model: {error}") from None
    setattr(config, KEY, {"name": name, "options": plain, "version": VERSION})
    config.attn_implementation = NAME


def noted(config: Any) -> tuple[str, dict[str, Any]] | None:
    """The core and its options that a configuration asks for; None if it is an ordinary one."""
    found = getattr(config, KEY, None)
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f"config.{KEY} is not of version {VERSION}, which this lln reads: {found}")
    options = dict(found["options"])
    matching = options.get("matching")
    if isinstance(matching, dict):
        fit = matching.get("fit")
        options["matching"] = Matching(**{**matching, "fit": None if fit is None else tuple(fit)})
    return found["name"], options


def register() -> None:
    """Makes the attention, its masks and its persistence known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, key_masks)
    PreTrainedModel.post_init = _rebuilding(PreTrainedModel.post_init)
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
            folder, **{**options, "use_safetensors": True}
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
            # The layers of its parts have their cores already.
            bare = [x for x in all_layers(model) if not hasattr(x, "attention_core")]
            attach(build_cores(bare, *asked))
            strict = model._keep_in_fp32_modules_strict or []
            model._keep_in_fp32_modules_strict = {*strict, "attention_core"}
            generate_with_states(model)
        post_init(model)

    return rebuild


def _checking(from_pretrained: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses weights of cores that the model lacks, and cores that the weights lack.

    transformers would drop the former, and fill the latter with whatever is in memory.
    """

    @functools.wraps(from_pretrained)
    def check(cls: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        model, info = from_pretrained(cls, *args, output_loading_info=True, **kwargs)
        for keys, problem in (
            ("missing_keys", "has lln attention by its config, but the weights lack"),
            ("unexpected_keys", "has no lln attention by its config, but the weights have"),
        ):
            found = sorted(key for key in info[keys] if "attention_core." in key)
            if found:
                raise ValueError(
                    f"{cls.__name__} {problem} {found[0]} ({len(found)} such): load weights with "
                    "the config that they were saved with"
                )
        return (model, info) if output_loading_info else model

    return check
