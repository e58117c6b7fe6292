"""What each branch of LLN+Diag carries (section 4.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lln.attention.lln_diag import LLNDiagAttention
from lln.functional.checks import check_attention
from lln.functional.precision import upcast
from lln.functional.softmax import blank
from lln.instruments.measures.result import Result
from lln.instruments.of_core import fixed_diag, fixed_factors


@dataclass(frozen=True)
class BranchShare(Result):
    """Parts of the output o = l + d over all real tokens, `(B, H)` each; 0 where o is 0.

    Attributes:
        lln: ⟨l, o⟩ / ‖o‖², the part of the output that LLN accounts for.
        diag: ⟨d, o⟩ / ‖o‖², the rest: both add up to 1.
        without_lln: ‖l‖ / ‖o‖, how far the output moves if the LLN branch is removed.
        without_diag: ‖d‖ / ‖o‖, the same for the block-diagonal branch.
    """

    lln: Tensor
    diag: Tensor
    without_lln: Tensor
    without_diag: Tensor


@torch.no_grad()
def branch_share(
    core: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> BranchShare:
    """How much of the output of `lln_diag` each of its branches carries.

    Args:
        core: an `LLNDiagAttention`.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        v: `(B, H_kv, N_k, E)`.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: as in `Attention`.
    """
    if not isinstance(core, LLNDiagAttention):
        raise TypeError(f"only lln_diag has two branches, got {type(core).__name__}")
    check_attention(q, k, v, key_mask=key_mask)
    q, k, v = upcast(q), upcast(k), upcast(v)
    found = fixed_factors(core, q, k, key_mask=key_mask, causal=causal)
    lln_share, diag_share = core.shares()
    branches = []
    for shares in ((lln_share, 0.0), (0.0, diag_share)):
        branch = fixed_diag(core, found, *shares)(q, k, v, key_mask=key_mask, causal=causal)
        if key_mask is not None and q.shape[2] == k.shape[2]:
            branch = blank(branch, key_mask)
        branches.append(branch.flatten(2))  # (B, H, N · E)
    lln, diag = branches
    out = lln + diag
    return BranchShare(
        _ratio((lln * out).sum(-1), out.square().sum(-1)),
        _ratio((diag * out).sum(-1), out.square().sum(-1)),
        _ratio(lln.norm(dim=-1), out.norm(dim=-1)),
        _ratio(diag.norm(dim=-1), out.norm(dim=-1)),
    )


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.masked_fill(whole == 0, 1), 0)
