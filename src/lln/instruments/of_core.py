"""The attention matrix of a core, in its cheapest form, with α and β fixed once.

| core | form | a product costs |
|---|---|---|
| softmax | `SoftmaxMatrix` | O(N² D) |
| lln; elu, relu, quadratic; performer, hedgehog | `FactoredMatrix` | O(N F), F features |
| any other, and any causal one but softmax | `CoreMatrix` | one forward pass |
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from lln import functional
from lln.attention.base import Attention
from lln.attention.feature_map import FeatureMapAttention
from lln.attention.lln import LLNAttention
from lln.attention.lln_diag import LLNDiagAttention
from lln.attention.log_feature_map import LogFeatureAttention
from lln.attention.softmax import SoftmaxAttention
from lln.functional.checks import check_attention
from lln.functional.lln import log_features
from lln.functional.precision import no_autocast, upcast
from lln.instruments.matrix import AttentionMatrix, CoreMatrix, FactoredMatrix, SoftmaxMatrix
from lln.matching import Factors

Share = float | Tensor


@torch.inference_mode(False)
@torch.no_grad()
def matrix_of(
    core: nn.Module,
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> AttentionMatrix:
    """The attention matrix of a core for these queries and keys.

    `lln_diag` with learned shares weighs its branches differently in each feature of v; its matrix
    has the means of the shares.

    Args:
        core: an `Attention`.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: as in `Attention`.
    """
    if not isinstance(core, Attention):
        raise TypeError(f"only a core has an attention matrix, got {type(core).__name__}")
    if not core.linear_in_values:
        raise ValueError(f"{core.name} is not linear in v: it has no attention matrix")
    check_attention(q, k, k, key_mask=key_mask)
    core.refuse_causal(causal)
    q, k = upcast(_outside_inference(q.detach())), upcast(_outside_inference(k.detach()))
    key_mask = None if key_mask is None else _outside_inference(key_mask)
    if isinstance(core, SoftmaxAttention):
        return SoftmaxMatrix(q, k, core.scale, key_mask=key_mask, causal=causal)
    if not causal:
        with no_autocast(q.device):
            factored = _factored(core, q, k, key_mask)
        if factored is not None:
            return factored
    attend: Callable[..., Tensor] = core.forward  # not the module: hooks are for the model's calls
    if isinstance(core, LLNAttention):
        alpha, beta, shift = fixed_factors(core, q, k, key_mask=key_mask, causal=causal)
        attend = partial(functional.lln_attention, alpha=alpha, beta=beta, key_shift=shift)
    elif isinstance(core, LLNDiagAttention):
        found = fixed_factors(core, q, k, key_mask=key_mask, causal=causal)
        lln_share, diag_share = map(_mean_of_features, core.shares())
        attend = fixed_diag(core, found, lln_share, diag_share)
    return CoreMatrix(attend, q, k, key_mask=key_mask, causal=causal)


def _outside_inference(x: Tensor) -> Tensor:
    """Columns of P are gradients, for which nothing of inference mode can be kept."""
    return x.clone() if x.is_inference() else x


def _factored(
    core: Attention, q: Tensor, k: Tensor, key_mask: Tensor | None
) -> FactoredMatrix | None:
    """P = A Bᵀ, for the cores that have this form."""
    if isinstance(core, FeatureMapAttention):
        return FactoredMatrix.of_features(core.features(q), core.features(k), key_mask)
    if isinstance(core, LogFeatureAttention):
        log_q, log_k = core.log_query_features(q), core.log_key_features(k)
        return FactoredMatrix.of_log_features(log_q, log_k, key_mask)
    if isinstance(core, LLNAttention):
        alpha, beta, shift = fixed_factors(core, q, k, key_mask=key_mask)
        log_q, log_k, _ = log_features(q, k, k, alpha, beta, key_mask, None, shift)
        return FactoredMatrix.of_log_features(log_q, log_k, key_mask)
    return None


@torch.no_grad()
def fixed_factors(
    core: LLNAttention | LLNDiagAttention,
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> Factors:
    """α and β as the core would find them now."""
    # A copy: running averages and calibration count the model's own calls only.
    matcher = deepcopy(core.matcher)
    found: Factors = matcher(q, k, key_mask=key_mask, causal=causal)
    return found


def fixed_diag(
    core: LLNDiagAttention, found: Factors, lln_share: Share, diag_share: Share
) -> Callable[..., Tensor]:
    """LLN+Diag as the core does it, with given factors and shares."""
    return partial(
        functional.lln_diag_attention,
        alpha=found.alpha,
        beta=found.beta,
        key_shift=found.key_shift,
        block_size=core.block_size,
        lln_share=lln_share,
        diag_share=diag_share,
        scale=core.scale,
    )


def _mean_of_features(share: Share) -> Share:
    return share.mean(-1, keepdim=True) if isinstance(share, Tensor) else share
