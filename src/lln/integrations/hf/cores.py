"""The attention layers of a Hugging Face model, and cores of this package that fit them."""

import inspect
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import initialization as init

from lln.attention import Attention, LLNAttention, LLNDiagAttention
from lln.attention.block_diag import BlockDiagAttention
from lln.attention.saving import real_float32
from lln.attention.sequence import SequenceAttention
from lln.integrations.hf.maps import HeadMaps
from lln.matching import Matcher
from lln.registry import build_core, entry

FROM_THE_MODEL = ("heads", "head_dim", "kv_heads", "scale")
STARTED = "_is_hf_initialized"
"""How transformers marks modules and tensors that have their first values."""
WITHIN_ONE_SEQUENCE = (SequenceAttention, BlockDiagAttention, LLNDiagAttention)
"""Cores for which it matters where in one and the same sequence a query and a key stand."""


def all_layers(model: nn.Module) -> list[Any]:
    """The attention layers that a core may serve."""
    return [
        module
        for module in model.modules()
        if _fetches_attention(module) and _window(module) is None
    ]


def check_layers(model: nn.Module, layers: list[Any]) -> None:
    """Raises if there are none, and says why."""
    if layers:
        return
    kind = type(model).__name__
    if any(_fetches_attention(module) for module in model.modules()):
        raise ValueError(
            f"every attention layer of {kind} has a sliding window and keeps softmax attention: "
            "build the model with sliding_window=None to replace it"
        )
    raise ValueError(
        f"{kind} does not fetch its attention from the attention interface of transformers, so it "
        "cannot be replaced"
    )


def build_cores(
    layers: list[Any], name: str, options: dict[str, Any]
) -> dict[nn.Module, Attention]:
    """A new core for each layer; the layers are not changed.

    Args:
        layers: attention layers of a model of transformers.
        name: of the core.
        options: of the core, and `maps`, see `apply`.
    """
    for option in FROM_THE_MODEL:
        if option in options:
            raise ValueError(f"{option} comes from the model and cannot be given")
    if getattr(entry(name).cls, "shares_queries", False):
        raise ValueError(f"{name} makes keys of the queries: it would ignore the model's keys")
    return {layer: _core(layer, name, options) for layer in layers}


def _across(layer: Any, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The form of a core for cross-attention, where queries and keys stand in no common order."""
    if name == "lln_diag":  # there are no blocks, so LLN does it all
        return "lln", {x: options[x] for x in options if x in (*entry("lln").options, "max_len")}
    if issubclass(entry(name).cls, WITHIN_ONE_SEQUENCE):
        raise ValueError(
            f"{name} attends within one sequence and cannot replace the cross-attention of "
            f"{type(layer).__name__}"
        )
    return name, options


def attach(cores: dict[nn.Module, Attention]) -> None:
    """Makes each core a part of its layer."""
    for layer, core in cores.items():
        device = next(layer.parameters()).device
        # While a checkpoint is loaded layers have no memory yet; a core always has.
        layer.attention_core = core if device.type == "meta" else core.to(device)
        if device.type != "meta":
            _mark_started(core)


def start(layers: list[Any], name: str, options: dict[str, Any]) -> None:
    """Fills cores of a model that was built without memory and has been given some.

    Args:
        layers: attention layers with cores.
        name: of the cores.
        options: of the cores.
    """
    empty = [layer for layer in layers if not _started(layer.attention_core)]
    for layer, new in build_cores(empty, name, options).items():
        core: Any = layer.attention_core
        for old, value in zip(_tensors(core), _tensors(new), strict=True):
            init.copy_(old, value)  # unless a checkpoint has filled it
        _mark_started(core)


def _started(core: Attention) -> bool:
    """The core has values, its own or those of a checkpoint."""
    return getattr(core, STARTED, False) or all(getattr(x, STARTED, False) for x in _tensors(core))


def _mark_started(core: Attention) -> None:
    """Keeps the core as it was built; the model would draw its layers as it draws its own."""
    for part in core.modules():
        setattr(part, STARTED, True)


def _tensors(core: Attention) -> list[Tensor]:
    return [*core.parameters(), *core.buffers()]


def _fetches_attention(module: nn.Module) -> bool:
    """The module's `forward` gets its attention function from transformers' interface."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _window(layer: Any) -> int | None:
    """The sliding window of a layer; where all layers are of one kind, it is the model's."""
    config = layer.config
    of_all = (
        None if getattr(config, "layer_types", None) else getattr(config, "sliding_window", None)
    )
    window: int | None = getattr(layer, "sliding_window", of_all)
    return window


def _core(layer: Any, name: str, options: dict[str, Any]) -> Attention:
    config, across = layer.config, _is_cross_attention(layer)
    options = dict(options)
    maps = options.pop("maps", False)
    if across:
        name, options = _across(layer, name, options)
    heads = _first(layer, "num_heads", "num_attention_heads", "n_heads")
    heads = config.num_attention_heads if heads is None else heads
    head_dim = _first(layer, "head_dim", "attention_head_size", "key_value_proj_dim")
    head_dim = config.hidden_size // heads if head_dim is None else head_dim
    scale = _first(layer, "scaling", "scale")
    scale = float(scale) if isinstance(scale, (int, float)) else head_dim**-0.5
    offered = {"kv_heads": heads // getattr(layer, "num_key_value_groups", 1), "scale": scale}
    own = {option: x for option, x in offered.items() if option in entry(name).options}
    max_len = {"max_len": getattr(config, "max_position_embeddings", None)}
    with real_float32():
        core = build_core(name, heads=heads, head_dim=head_dim, **{**max_len, **own, **options})
    assert isinstance(core, Attention)
    core.scale = scale  # known also to cores that have no scores: calls are compared with it
    if maps:
        with real_float32():
            core.maps = HeadMaps(core.heads, core.kv_heads, core.head_dim)
    if across and isinstance(core, LLNAttention):
        _freeze(core.matcher)
    return core.train(layer.training)


def _is_cross_attention(layer: Any) -> bool:
    """The queries are a decoder's, and the keys an encoder's."""
    in_decoder = getattr(layer, "is_decoder", False) and not getattr(layer, "is_causal", False)
    named = "CrossAttention" in type(layer).__name__
    return bool(in_decoder or named or getattr(layer, "is_cross_attention", False))


def _freeze(matcher: Matcher) -> None:
    """Stored statistics, as in causal attention, unless others were asked for.

    Those of a decoder's queries would tell early tokens of later ones, and while it generates they
    would be those of a single token.
    """
    if matcher.matching.statistics == "auto":
        matcher.matching = replace(matcher.matching, statistics="frozen")


def _first(layer: Any, *names: str) -> Any:
    return next((getattr(layer, name) for name in names if hasattr(layer, name)), None)
