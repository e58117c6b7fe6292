"""The masks that transformers hands to our attention: of keys, never of pairs of tokens."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

PLAIN = (bidirectional_mask_function, causal_mask_function)


def key_masks(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """The mask for the layers of one kind, once per forward pass; arguments as in transformers.

    Causality and packing are no part of it: the attention function reads both where they are.

    Returns:
        `(B, N)` bool, True = keep, for the first N keys: those after it are the empty part of a
        static cache. None if there are no others than real keys. For layers that attend within
        windows, which stay with SDPA, its `(B, 1, N_q, N_k)`.
    """
    if local_size is not None:
        return sdpa_mask(  # type: ignore[no-any-return]
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            use_vmap=use_vmap,
            device=device,
            **options,
        )
    if use_vmap:
        raise NotImplementedError(
            "this model makes a mask of its own over pairs of tokens, and attention of linear cost "
            "masks keys alone: use its attn_implementation='sdpa'"
        )
    filled = kv_length
    if mask_function is not bidirectional_mask_function:
        _refuse_views_of_the_future(mask_function, batch_size, q_length, device)
        filled = _end(q_offset, q_length, kv_length) - kv_offset
    if attention_mask is None:
        keep = torch.ones(batch_size, filled, dtype=torch.bool, device=device)
        return None if filled == kv_length else keep
    keep = attention_mask[:, kv_offset : kv_offset + filled]
    keep = F.pad(keep, (0, filled - keep.shape[1]))  # what the mask does not reach is not kept
    if filled == kv_length and not torch.compiler.is_compiling() and keep.all():
        return None
    return keep


def refuse_if(condition: Tensor, message: str) -> None:
    """Raises `message` if any element holds; a compiled graph does so while it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(~condition.any(), message)
    elif condition.any():
        raise NotImplementedError(message)


def _end(q_offset: int | Tensor, q_length: int, kv_length: int) -> int:
    """How many keys there are up to the last query: behind them, a static cache is empty."""
    if not isinstance(q_offset, Tensor):
        return min(q_offset + q_length, kv_length)
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            "compiled code cannot tell how full a static cache is: use the cache of lln.hf, or a "
            "dynamic one"
        )
    return min(int(q_offset) + q_length, kv_length)


def _refuse_views_of_the_future(
    mask_function: Callable[..., Tensor], batch: int, n: int, device: torch.device | str
) -> None:
    """Packing narrows a causal mask; what widens it (images within a text) we cannot honour."""
    if mask_function in PLAIN or n < 2:
        return
    row = torch.arange(batch, device=device)[:, None]
    token = torch.arange(n, device=device)[None]
    head = torch.zeros((), dtype=torch.long, device=device)
    refuse_if(
        mask_function(row, head, token[:, :-1], token[:, 1:]),
        "this model lets some tokens see later ones in causal attention, and attention of linear "
        "cost cannot: use attn_implementation='sdpa'",
    )
