"""The attention weights of a core as a tensor, which costs N² and is for looking at."""

from copy import deepcopy

import torch
from torch import Tensor

from lln.attention import Attention, LLNDiagAttention
from lln.functional.precision import no_autocast, upcast


@torch.no_grad()
def weights_of(
    core: Attention, q: Tensor, k: Tensor, *, key_mask: Tensor | None, causal: bool
) -> Tensor:
    """P `(B, H, N_q, N_k)` for which the core's output is P v: what it makes of unit vectors.

    The queries of padded tokens have their rows too, as in torch, unlike in
    `lln.instruments.matrix_of`. `lln_diag` with learned shares weighs its branches differently in
    each feature of v; P has the means of the shares.

    Args:
        core: the attention; nothing that it stores changes.
        q: `(B, H, N_q, D)`.
        k: `(B, H, N_k, D)`.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: as in `Attention`.
    """
    if not core.linear_in_values:
        raise ValueError(
            f"{core.name} is not linear in its values and has no attention weights: "
            "pass need_weights=False"
        )
    core = deepcopy(core)  # running statistics count the calls of the model only
    if isinstance(core, LLNDiagAttention):
        for share in core.parameters():
            share.data = share.data.mean(-1, keepdim=True)
    units = torch.eye(k.shape[2], dtype=upcast(k).dtype, device=k.device)
    with no_autocast(q.device):
        weights: Tensor = core.forward(
            upcast(q),
            upcast(k),
            units.expand(*k.shape[:2], -1, -1),
            key_mask=key_mask,
            causal=causal,
        )
    return weights.to(q.dtype)
