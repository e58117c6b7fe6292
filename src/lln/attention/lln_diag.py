"""LLN+Diag attention (Nahshan et al. 2023, section 4.2, Figure 3), O(N · (D² + block size · D)).

Deviations from the authors' code: the block size is free (theirs is the head dimension), and those
listed in `lln.attention.lln`.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lln import functional
from lln.attention.base import Attention
from lln.attention.lln import find_factors
from lln.functional import LLNDiagState
from lln.functional.checks import check_positive
from lln.matching import Factors, Matcher, Matching
from lln.registry import register

Combine = Literal["average", "learnable_scale", "learnable_ratio"]


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor | None = None,
    beta: float | Tensor | None = None,
    block_size: int = 64,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    matching: str | float | Matching = "entropy",
) -> Tensor:
    """The average of LLN attention and block-diagonal attention.

    Arguments as in `lln.lln_attention`, and `block_size`, the number of tokens per block.
    """
    alpha, beta, key_shift = find_factors(
        q, k, alpha, beta, key_mask, causal, cu_seqlens, scale, matching
    )
    return functional.lln_diag_attention(
        q,
        k,
        v,
        alpha,
        beta,
        block_size=block_size,
        key_mask=key_mask,
        causal=causal,
        cu_seqlens=cu_seqlens,
        key_shift=key_shift,
        scale=scale,
    )


@register("lln_diag", paper="Nahshan et al. 2023", complexity="O(N)")
class LLNDiagAttention(Attention):
    """LLN attention for the long range, block-diagonal attention for the short.

    Args:
        block_size: tokens per block.
        combine: `average` (the paper); or `learnable_scale`, a weight per branch, head and feature;
            or `learnable_ratio`, weights r and 1 − r. Both start as the average.
        matching: as in `LLNAttention`.
        max_len: as in `LLNAttention`.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        block_size: int = 64,
        combine: Combine = "average",
        matching: str | float | Matching = "entropy",
        kv_heads: int | None = None,
        scale: float | None = None,
        max_len: int | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        self.matcher = Matcher(
            matching, heads, head_dim, kv_heads=kv_heads, scale=scale, max_len=max_len
        )
        check_positive("block_size", block_size)
        if combine not in get_args(Combine):
            raise ValueError(
                f"combine must be one of {', '.join(get_args(Combine))}, got {combine!r}"
            )
        self.block_size, self.combine = block_size, combine
        if combine != "average":
            self.lln_share = nn.Parameter(torch.full((heads, 1, head_dim), 0.5))
        if combine == "learnable_scale":
            self.diag_share = nn.Parameter(torch.full((heads, 1, head_dim), 0.5))

    def shares(self) -> tuple[float | Tensor, float | Tensor]:
        """The weights of the LLN branch and of the block-diagonal one."""
        if self.combine == "average":
            return 0.5, 0.5
        if self.combine == "learnable_ratio":
            return self.lln_share, 1 - self.lln_share
        return self.lln_share, self.diag_share

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        found: Factors = self.matcher(q, k, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens)
        lln_share, diag_share = self.shares()
        return functional.lln_diag_attention(
            q,
            k,
            v,
            found.alpha,
            found.beta,
            block_size=self.block_size,
            lln_share=lln_share,
            diag_share=diag_share,
            key_mask=key_mask,
            causal=causal,
            cu_seqlens=cu_seqlens,
            key_shift=found.key_shift,
            scale=self.scale,
        )

    def recurrent(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: LLNDiagState | None = None,
        *,
        key_mask: Tensor | None = None,
    ) -> tuple[Tensor, LLNDiagState]:
        """Causal attention of new tokens that follow `state`, and the state after them."""
        found = self.matcher.frozen(q, k)
        lln_share, diag_share = self.shares()
        return functional.lln_diag_recurrent(
            q,
            k,
            v,
            found.alpha,
            found.beta,
            state,
            block_size=self.block_size,
            lln_share=lln_share,
            diag_share=diag_share,
            key_mask=key_mask,
            key_shift=found.key_shift,
            scale=self.scale,
        )
