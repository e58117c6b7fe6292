"""The attention function of transformers' interface that runs the cores of this package.

What a layer asks for is honoured or refused. Where the interface leaves a choice:

- Causality is the call's `is_causal`, else the module's, else False.
- Keys align with queries at the end: a query of a cached model sees the past and itself.
- Sequences packed into one row come as `cu_seq_lens_q` and `cu_seq_lens_k`, or as `position_ids`
  that do not rise by 1.
- Attention dropout drops keys. Weights of single pairs do not exist here, so a dropped key is
  dropped for all queries of a head; each output keeps the mean and the variance that dropout of
  weights gives it.
- Weights are computed only if `output_attentions` asks, at O(N²), before dropout and beside the
  output: no gradient passes through them.
- A layer that attends within a sliding window stays with SDPA.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import output_capturing

from lln.attention import Attention
from lln.instruments.interface import CHANGE_SCORES
from lln.integrations.hf.masks import refuse_if
from lln.integrations.torch.weights import weights_of

NAME = "lln"


class Request(NamedTuple):
    """What a layer asks its core for; arguments as in `Attention`."""

    core: Attention
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    causal: bool
    cu_seqlens: Tensor | None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it.

    Args:
        module: the layer, with the core that `apply` gave it.
        query: `(B, H, N_q, D)`.
        key: `(B, H_kv, N_k, D)`.
        value: `(B, H_kv, N_k, E)`.
        attention_mask: as `key_masks` makes it.
        dropout: probability, 0 outside training.
        scaling: of softmax scores.
        options: what else the model passes on.

    Returns:
        `(B, N_q, H, E)`, and the weights `(B, H, N_q, N_k)` if asked for.
    """
    if in_window(module, options):
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    asked = mapped(read(module, query, key, value, attention_mask, scaling, options))
    core, q, k, v, key_mask, causal, cu_seqlens = asked
    if dropout:
        v = v * F.dropout(v.new_ones(*v.shape[:3], 1), dropout)
    wanted = _weights_wanted(options)
    recurrent = getattr(key, "recurrent_layer", None)
    if recurrent is not None:
        if wanted or cu_seqlens is not None or not causal:
            raise NotImplementedError(
                "a recurrent state serves causal attention of one sequence per row, and has no "
                "weights of the past: call generate with cache_implementation='dynamic'"
            )
        out = recurrent.attend(core, q, k, v, key_mask)
    else:
        out = core(q, k, v, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens)
    weights = _weights(asked) if wanted else None
    return out.transpose(1, 2).to(value.dtype).contiguous(), weights


def in_window(module: nn.Module, options: dict[str, Any]) -> bool:
    """The layer attends within a sliding window, and has no core."""
    return options.get("sliding_window") is not None and not hasattr(module, "attention_core")


def read(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    options: dict[str, Any],
) -> Request:
    """The arguments of a call in the terms of this package; raises for what cannot be honoured."""
    layer = type(module).__name__
    core = getattr(module, "attention_core", None)
    if not isinstance(core, Attention):
        raise ValueError(f"{layer} has no attention core: call lln.hf.apply(model, name) first")
    for option in (*CHANGE_SCORES, "sliding_window"):
        if options.get(option) is not None:
            raise NotImplementedError(
                f"{layer} changes its attention scores by {option}, which {core.name} attention "
                "does not have: this architecture needs attn_implementation='sdpa' or 'eager'"
            )
    # Not math.isclose: compiled code of dynamic shapes has numbers that it cannot take.
    if scaling is not None and abs(scaling - core.scale) > 1e-6 * abs(core.scale):
        raise ValueError(
            f"{layer} scales its scores by {scaling}, but its core was built for {core.scale}"
        )
    if mask is not None:
        if mask.dim() != 2 or mask.dtype != torch.bool:
            raise NotImplementedError(
                f"{layer} got a mask {tuple(mask.shape)} of {mask.dtype}, but {core.name} masks "
                "keys alone: give the model a mask (B, N) with 1 = keep and 0 = padding"
            )
        if not hasattr(key, "recurrent_layer"):
            key, value = key[:, :, : mask.shape[1]], value[:, :, : mask.shape[1]]
    asked = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", False) if asked is None else asked)
    cu_seqlens = _bounds(query, key, mask, options)
    # Under autocast, rotary embeddings leave queries and keys in float32, and values in half.
    return Request(core, query, key, value.to(query.dtype), mask, causal, cu_seqlens)


def mapped(asked: Request) -> Request:
    """With queries and keys as the learned maps of the core make them, if it has some."""
    maps = getattr(asked.core, "maps", None)
    if maps is None:
        return asked
    q, k = maps(asked.q, asked.k)
    return asked._replace(q=q, k=k)


def _bounds(
    query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Tensor | None:
    """`(S + 1,)` where the sequences of a packed row begin and end; None if there is but one."""
    bounds: Tensor | None = options.get("cu_seq_lens_q")
    if bounds is not None:
        of_keys = options.get("cu_seq_lens_k")
        if of_keys is not bounds and of_keys is not None:
            refuse_if(of_keys != bounds, "cu_seq_lens_q and cu_seq_lens_k must be equal")
        return bounds
    positions, n = options.get("position_ids"), query.shape[2]
    if mask is not None or positions is None or n == 1:
        return None
    if positions.dim() != 2 or positions.shape[1] != n or key.shape[2] != n:
        return None
    starts = positions.diff(dim=1) != 1  # (B, N − 1)
    if query.shape[0] > 1 or torch.compiler.is_compiling():
        refuse_if(
            starts,
            "position_ids do not rise by 1, which means packed sequences: pack them into a batch "
            "of one row and, in compiled code, pass cu_seq_lens_q and cu_seq_lens_k; give an "
            "attention_mask if nothing is packed",
        )
        return None
    inner = starts[0].nonzero()[:, 0] + 1
    return F.pad(F.pad(inner, (1, 0)), (0, 1), value=n) if len(inner) else None


def _weights_wanted(options: dict[str, Any]) -> bool:
    """Whether the model was called with `output_attentions`; some models do not pass it on."""
    if options.get("output_attentions"):
        return True
    # Not public: a transformers without it leaves us with the models that pass it on.
    collector = getattr(output_capturing, "_active_collector", None)
    collecting = None if collector is None else collector.get()
    return collecting is not None and any(key.endswith("attentions") for key in collecting)


def _weights(asked: Request) -> Tensor:
    """`(B, H, N_q, N_k)`."""
    core, q, k, _, key_mask, causal, cu_seqlens = asked
    if cu_seqlens is not None:
        raise NotImplementedError("output_attentions takes padded batches, not packed ones")
    if not core.linear_in_values:
        raise NotImplementedError(
            f"{core.name} is not linear in its values and has no weights: pass "
            "output_attentions=False"
        )
    return weights_of(core, q, k, key_mask=key_mask, causal=causal)
