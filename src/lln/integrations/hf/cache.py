"""Generation with a state of constant size in place of the keys and values of the past.

`generate` keeps the past in a cache of one object per layer. A model gives new keys and values to
its layer's object and attends with what it gets back. `RecurrentLayer` gives the new ones back and
notes on the keys where they came from; the attention function finds the note and lets the layer
attend, which updates the state. So neither memory nor time per token depends on the length.

Notes and states go together one to one: a model that loses a note, or uses it twice, raises.

A state bypasses the `forward` of its core. So while someone watches that by hooks, as
`lln.instruments.record` does, `generate` keeps keys and values.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer
from transformers.generation import GenerationMode

from lln.attention import Attention
from lln.attention.sequence import SequenceAttention
from lln.functional.recurrent import state_tensors
from lln.integrations.hf.attention import NAME

NEVER_GO_BACK = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)
NO_WAY_BACK = (
    "a recurrent state cannot forget its last tokens, as assisted decoding and prompt lookup need: "
    "call generate without past_key_values, or with cache_implementation='dynamic'"
)


class RecurrentLayer(DynamicLayer):  # type: ignore[misc]
    """What one attention layer remembers: the state of its core, and how many tokens it saw."""

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None
        self.length = 0
        self._waiting = False

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes note of new tokens, which `attend` has to follow."""
        self._take_turns(self._waiting)
        self.length += key_states.shape[2]
        key_states.recurrent_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def attend(self, core: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Causal attention of the new tokens to the past and to themselves.

        Args:
            core: an attention with a recurrent form.
            q: `(B, H, N, D)`.
            k: `(B, H_kv, N, D)`.
            v: `(B, H_kv, N, E)`.
            mask: `(B, M)` bool, True = keep, M ≥ N: the last N are the new tokens, and those before
                are in the state already.

        Returns:
            `(B, H, N, E)`.
        """
        self._take_turns(not self._waiting)
        if _watched(core):
            raise NotImplementedError(
                "a recurrent state has no keys to measure: make the cache inside `record`, or call "
                "generate without past_key_values"
            )
        key_mask = None if mask is None else mask[:, -k.shape[2] :]
        out: Tensor
        out, self.state = core.recurrent(q, k, v, self.state, key_mask=key_mask)
        return out

    def _take_turns(self, out_of_turn: bool) -> None:
        if out_of_turn:
            raise RuntimeError(
                "an attention layer did not use its recurrent state once for each call: it changes "
                f"keys after its cache, shares them with another layer or no longer runs {NAME!r}; "
                "call generate with cache_implementation='dynamic'"
            )
        self._waiting = not self._waiting

    @property
    def nbytes(self) -> int:
        """The memory that the state occupies."""
        return sum(x.untyped_storage().nbytes() for x in state_tensors(self.state))

    def get_seq_length(self) -> int:
        return self.length

    def reset(self) -> None:
        self.state, self.length, self._waiting = None, 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The batch becomes `[batch[i] for i in beam_idx]`."""
        if self.state is not None:
            device = next(state_tensors(self.state)).device
            self.state = self.state.reorder(beam_idx.to(device))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            batch = next(state_tensors(self.state)).shape[0]
            self.reorder_cache(torch.arange(batch).repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        """Asked for by those who will `crop`."""
        raise NotImplementedError(NO_WAY_BACK)

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise NotImplementedError(NO_WAY_BACK)


def cache(model: Any) -> Any:
    """An empty cache for `generate(past_key_values=…)` or for your own loop over tokens.

    Layers whose core has a recurrent form keep a state of constant size, others their keys and
    values. `generate` makes such a cache itself, unless told otherwise by `cache_implementation`.

    Args:
        model: a causal or encoder-decoder model after `apply`.
    """
    config = model.config.get_text_config(decoder=True)
    made = DynamicCache(config=config)
    if model.config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        made = EncoderDecoderCache(made, DynamicCache(config=config))
    return _add_states(model, made)


def _add_states(model: Any, made: Any) -> Any:
    """Replaces what an empty cache has for layers that are recurrent, and that nobody watches."""
    layers = (made.self_attention_cache if isinstance(made, EncoderDecoderCache) else made).layers
    for module, core in _causal(model):
        if hasattr(core, "recurrent") and not _watched(core):
            layers[module.layer_idx] = RecurrentLayer()
    return made


def _causal(model: Any) -> Iterator[tuple[Any, Attention]]:
    """The attention layers that generate with a core of ours, and the cores."""
    for module in model.modules():
        core = getattr(module, "attention_core", None)
        if (
            isinstance(core, Attention)
            and getattr(module, "is_causal", False)
            and module.config._attn_implementation == NAME  # it may have been changed since
        ):
            yield module, core


def _watched(core: Attention) -> bool:
    """There are hooks that expect calls of `forward`."""
    return bool(core._forward_pre_hooks or core._forward_hooks)


def with_states(prepare: Callable[..., None]) -> Callable[..., None]:
    """Makes `generate` use `cache(model)` wherever it would use an ordinary cache.

    Args:
        prepare: transformers' `_prepare_cache_for_generation`, which still serves models without
            cores of ours.
    """

    @functools.wraps(prepare)
    def prepare_with_states(
        model: Any, config: Any, model_kwargs: dict[str, Any], mode: Any, *sizes: int
    ) -> None:
        given = model_kwargs.get("past_key_values")
        prepare(model, config, model_kwargs, mode, *sizes)
        made = model_kwargs.get("past_key_values")
        if made is None:
            return
        for _, core in _causal(model):
            if isinstance(core, SequenceAttention):
                raise NotImplementedError(
                    f"{core.name} attends within whole sequences and cannot go on from a cache: "
                    "call generate with use_cache=False"
                )
        asked = config.cache_implementation is not None or config.is_assistant
        if given is None and mode in NEVER_GO_BACK and not asked:
            _add_states(model, made)

    return prepare_with_states
