"""The masks of `torch.nn.MultiheadAttention`, in the terms of a core: `key_mask` and `causal`.

A mask over pairs of tokens costs N² and can say anything, a core knows two of them: all pairs, and
no pair with a later key. Any other mask is refused.
"""

import torch
from torch import Tensor


def key_mask_of(key_padding_mask: Tensor | None, batch: int, n_k: int) -> Tensor | None:
    """`(B, N_k)` bool, True = keep, of a mask in which True or −inf means to ignore a key."""
    if key_padding_mask is None:
        return None
    shape = tuple(key_padding_mask.shape)
    if shape not in ((batch, n_k), (n_k,)) or (len(shape) == 1 and batch != 1):
        raise ValueError(f"key_padding_mask must have shape ({batch}, {n_k}), got {shape}")
    return ~_hidden(key_padding_mask, "key_padding_mask").view(batch, n_k)


def causality(
    attn_mask: Tensor | None, is_causal: bool, batch: int, heads: int, n_q: int, n_k: int
) -> bool:
    """Whether attention is causal, by `attn_mask` or by `is_causal` or by both, which must agree.

    With `is_causal` values are not waited for on a GPU, and the mask may be left out.
    """
    if attn_mask is None:
        if is_causal and n_q != n_k:
            raise ValueError(
                f"is_causal needs attn_mask where query and key differ in length ({n_q} and "
                f"{n_k}): it does not say which of their tokens belong together"
            )
        return is_causal
    shape = tuple(attn_mask.shape)
    if shape not in ((n_q, n_k), (batch * heads, n_q, n_k)):
        raise ValueError(
            f"attn_mask must have shape ({n_q}, {n_k}) or ({batch * heads}, {n_q}, {n_k}), "
            f"got {shape}"
        )
    hidden = _hidden(attn_mask, "attn_mask")
    later = torch.ones(n_q, n_k, dtype=torch.bool, device=hidden.device).triu(1 + n_k - n_q)
    is_later = (hidden == later).all()
    if is_causal:
        _demand(is_later, "is_causal=True says that attn_mask is causal, but it is not")
        return True
    if torch.compiler.is_compiling():
        raise ValueError(
            "attn_mask cannot be read while compiling: pass is_causal=True with a causal mask, "
            "and no attn_mask where all tokens see each other"
        )
    if not hidden.any():
        return False
    if is_later:
        return True
    raise ValueError(
        "attn_mask must be causal or hide nothing, other masks over pairs of tokens have no linear "
        "form: pass padding as key_padding_mask, or use torch.nn.MultiheadAttention"
    )


def _hidden(mask: Tensor, name: str) -> Tensor:
    """True where a mask forbids to attend."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be bool or floating point, got {mask.dtype}")
    hidden = mask == -torch.inf
    _demand(
        (hidden | (mask == 0)).all(),
        f"a floating point {name} may hold 0 and -inf only: nothing else can be added to scores",
    )
    return hidden


def _demand(condition: Tensor, message: str) -> None:
    """Raises unless a bool is True; a GPU raises when it gets there, and nobody waits for it."""
    if torch.compiler.is_compiling() or condition.is_cuda:
        torch._assert_async(condition, message)
    elif not condition:
        raise ValueError(message)
