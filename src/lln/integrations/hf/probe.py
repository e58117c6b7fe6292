"""A forward pass that proves that the attention layers of a model call their cores."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lln.integrations.hf.attention import NAME, attend, in_window, read
from lln.integrations.hf.cores import WITHIN_ONE_SEQUENCE


def probe(model: Any, layers: set[nn.Module], example: dict[str, Any] | None) -> None:
    """Raises unless a forward pass reaches all `layers`, with calls that their cores can honour.

    No attention is computed, so cores neither learn nor warn.

    Args:
        model: after `attach`.
        layers: those with a core.
        example: arguments of `forward`; by default token ids or an image.
    """
    called: set[nn.Module] = set()
    refused: list[Exception] = []  # by us, and not by the model

    def see(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        try:
            return check(*args, **options)
        except Exception as error:
            refused.append(error)
            raise

    def check(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if in_window(module, options):
            return attend(module, query, key, value, attention_mask, dropout, scaling, **options)
        core, q, k, v, _, causal, _ = read(
            module, query, key, value, attention_mask, scaling, options
        )
        kind = type(module).__name__
        core.refuse_causal(causal)
        built, found = (
            (core.heads, core.kv_heads, core.head_dim),
            (q.shape[1], k.shape[1], q.shape[3]),
        )
        if built != found:
            raise ValueError(
                f"{kind} has (heads, key heads, head dimension) {found} and tells of {built}: "
                "this architecture is not supported"
            )
        if isinstance(core, WITHIN_ONE_SEQUENCE) and q.shape[2] != k.shape[2]:
            raise NotImplementedError(
                f"{core.name} attends within one sequence, and {kind} attends to another one"
            )
        called.add(module)
        return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3]), None

    name = type(model).__name__
    inputs = _inputs(model) if example is None else example
    with instead(see), evaluating(model), torch.no_grad():
        try:
            model(**inputs)
        except Exception as error:
            if error in refused:
                raise
            reason = str(error).strip().split("\n")[0]
            raise ValueError(
                f"a trial run of {name} failed ({reason}): give apply(…, example=…), the arguments "
                "of its forward"
            ) from error
    silent = [path for path, module in model.named_modules() if module in layers - called]
    if silent:
        raise ValueError(
            f"{len(silent)} of {len(layers)} attention layers of {name} did not call their core, "
            f"{silent[0]} is the first: give apply(…, example=…), the arguments of a forward that "
            "reaches them"
        )


def _inputs(model: Any) -> dict[str, Tensor]:
    """Arguments for most models: a few tokens, or one image."""
    config, device = model.config, model.device
    if model.main_input_name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (1, config.num_channels, height, width)
        return {"pixel_values": torch.zeros(shape, dtype=model.dtype, device=device)}
    text = config.get_text_config()
    tokens = torch.arange(5, device=device).remainder(text.vocab_size)[None]
    inputs = {"input_ids": tokens}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens[:, :3]
    elif getattr(config, "add_cross_attention", False):
        states = torch.zeros(1, 3, text.hidden_size, dtype=model.dtype, device=device)
        inputs["encoder_hidden_states"] = states
    return inputs


@contextmanager
def instead(function: Any) -> Iterator[None]:
    """Puts `function` in the place of our attention function."""
    AttentionInterface.register(NAME, function)
    try:
        yield
    finally:
        AttentionInterface.register(NAME, attend)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and afterwards each module as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
