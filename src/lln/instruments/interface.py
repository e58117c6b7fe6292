"""The attention interface of transformers: what a model hands to the function that attends.

In each call of each layer, a model fetches that function by the name of its implementation,
`AttentionInterface.get_interface(name, default)`. Watching what it fetches leaves the name alone,
on which masks depend, and in some models (GPT-2, Falcon) the computation too.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lln.attention import Attention, SoftmaxAttention

SDPA = "sdpa"
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
SOFTMAX = ("eager", "flex_attention", SDPA, *FLASH)
CHANGE_SCORES = ("position_bias", "softcap", "s_aux")

See = Callable[[str, nn.Module, Tensor, Tensor, Any, dict[str, Any]], None]


class Unmeasurable(Exception):
    """Why a layer cannot be measured."""


class Call(NamedTuple):
    """An attention about to run; arguments as in `Attention`."""

    core: Attention
    q: Tensor
    k: Tensor
    key_mask: Tensor | None
    causal: bool


@contextmanager
def watching(see: See) -> Iterator[None]:
    """Calls `see(name, module, q, k, mask, options)` before each attention of transformers."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is None:  # then no model of it exists
        yield
        return
    interface: Any = transformers.AttentionInterface
    fetch = interface.get_interface

    def get_interface(self: Any, name: str | None, default: Callable[..., Any]) -> Any:
        attend = fetch(self, name, default)

        def watched(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Any = None,
            *args: Any,
            **options: Any,
        ) -> Any:
            see(name or "eager", module, query, key, attention_mask, options)
            return attend(module, query, key, value, attention_mask, *args, **options)

        return watched

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = fetch


def read(
    name: str, module: nn.Module, q: Tensor, k: Tensor, mask: Any, options: dict[str, Any]
) -> Call:
    """The softmax attention that such a call computes.

    Args:
        name: of the implementation.
        module: the layer.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        mask: None, `(B, N_k)`, or `(B, 1, N_q, N_k)`, bool (True = keep) or to be added to scores.
        options: the other arguments of the call.

    Raises:
        Unmeasurable: it is not softmax attention, with padding and causality at most.
    """
    if name not in SOFTMAX:
        raise Unmeasurable(f"implementation {name!r} is not known to be softmax attention")
    for option in CHANGE_SCORES:
        if options.get(option) is not None:
            raise Unmeasurable(f"its scores depend on {option}")
    if name in FLASH and (
        options.get("sliding_window") or options.get("cu_seq_lens_q") is not None
    ):
        raise Unmeasurable("it attends within windows or packed sequences")
    key_mask, causal = None, False
    if isinstance(mask, Tensor) and mask.dim() == 4:
        key_mask, causal = _reduce(mask, q, k)
    elif isinstance(mask, Tensor) and mask.shape == (k.shape[0], k.shape[2]):
        key_mask = mask.bool()
    elif mask is not None:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise Unmeasurable(f"its mask is {found}, neither (B, N) nor (B, 1, N, N)")
    if name in FLASH or (name == SDPA and mask is None):
        # The eager form is causal by its mask alone; SDPA, unless the module says that it is not.
        asked = options.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if asked is None else asked)
    if name == SDPA and mask is None and causal and q.shape[2] > 1:
        k = k[:, :, : q.shape[2]]  # as SDPA does: what follows is the empty part of a static cache
    heads, _, dim = q.shape[1:]
    core = SoftmaxAttention(heads, dim, kv_heads=k.shape[1], scale=options.get("scaling"))
    return Call(core, q, k, key_mask, causal)


def _reduce(mask: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, bool]:
    """A mask for all pairs of tokens as a mask of keys, and whether it is causal."""
    visible = mask
    if mask.dtype != torch.bool:
        visible = mask == 0
        if not (visible | (mask <= torch.finfo(mask.dtype).min / 2)).all():
            raise Unmeasurable("its mask adds a bias to the scores")
    if not (visible == visible[:, :1]).all():
        raise Unmeasurable("its mask differs between heads")
    batch, n_q, n_k = q.shape[0], q.shape[2], k.shape[2]
    visible = visible[:, 0].expand(batch, n_q, n_k)
    key_mask = visible[:, -1]  # the last query sees every real key, causal or not
    # What a padded query sees is of no matter, and differs between implementations.
    ignored = ~key_mask[:, :, None] if n_q == n_k else torch.zeros_like(visible)
    past = torch.ones(n_q, n_k, dtype=torch.bool, device=mask.device).tril(n_k - n_q)
    for causal in (False, True):
        expected = key_mask[:, None, :] & past if causal else key_mask[:, None, :]
        if ((visible == expected) | ignored).all():
            return key_mask, causal
    raise Unmeasurable("its mask is neither padding nor causal: a window, or packed sequences")
