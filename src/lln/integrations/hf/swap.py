"""Replacing the attention of a Hugging Face model that is in memory."""

from typing import Any

from transformers import PreTrainedModel

from lln.integrations.hf.attention import NAME
from lln.integrations.hf.cores import all_layers, attach, build_cores, check_layers
from lln.integrations.hf.persistence import note
from lln.integrations.hf.probe import probe


def apply(model: Any, name: str, *, example: dict[str, Any] | None = None, **options: Any) -> Any:
    """Replaces the softmax attention of a model, in place, and returns the model.

    Weights stay as they are. `model.config` notes what was done, so that `save_pretrained` stores
    it. Layers that attend within sliding windows keep softmax, and in cross-attention, where there
    are no blocks, `lln_diag` is `lln`. A short forward pass that computes no attention proves that
    every other layer calls its core; if anything fails, nothing changes.

    Args:
        model: a model of transformers that uses its attention interface.
        name: a core, one of `lln.available()`.
        example: arguments of the model's `forward` for that pass; needed by models that take
            neither token ids alone nor images alone.
        options: the core's own, such as `block_size`; `max_len`, the longest sequence, is
            `config.max_position_embeddings` by default; and `maps=True` for learnable linear maps
            of each head's queries and keys, the identity at first, which `convert` trains.

    Example:
        model = lln.hf.apply(AutoModel.from_pretrained(folder), "lln_diag", block_size=64)
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"apply takes a model of transformers, got {type(model).__name__}")
    layers = all_layers(model)
    check_layers(model, layers)
    cores = build_cores(layers, name, options)
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    # Layers of a model that was put together of others have other configurations than its parts.
    configs = list({id(x.config): x.config for x in (*parts, *layers)}.values())
    had = {layer: getattr(layer, "attention_core", None) for layer in cores}
    ran = [config._attn_implementation for config in configs]
    try:
        attach(cores)
        model.set_attn_implementation(NAME)
        for layer in layers:
            layer.config._attn_implementation_internal = NAME
        probe(model, set(cores), example)
        for config in configs:
            note(config, name, options)
    except BaseException:
        for layer, core in had.items():
            if core is None:
                del layer.attention_core
            else:
                layer.attention_core = core
        for config, implementation in zip(configs, ran, strict=True):
            config._attn_implementation_internal = implementation
        raise
    return model
