"""Linear Log-Normal attention (Nahshan et al. 2023, Eq. 8–10), O(N · D²).

Deviations from the authors' code: exact at any scale (no eps, no maximum over the sequence);
statistics per sequence and over real tokens; α and β calibrated for the head dimension and, by
default, matched in entropy. `matching="paper"` is the authors' module.
"""

from torch import Tensor

from lln import functional
from lln.attention.base import Attention
from lln.functional import LLNState
from lln.matching import Factors, Matcher, Matching, match, resolve
from lln.registry import register


def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor | None = None,
    beta: float | Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    matching: str | float | Matching = "entropy",
) -> Tensor:
    """LLN attention that finds α and β itself, or takes them.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`, H a multiple of H_kv.
        v: `(B, H_kv, N_k, E)`.
        alpha: given together with `beta`: a number, or broadcasts to `(B, H)`.
        beta: a number, or broadcasts to `(B, H_kv)`.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: query i sees the keys up to i + N_k − N_q; needs α and β that are given.
        cu_seqlens: `(S + 1,)` bounds of sequences packed into one row.
        scale: of the softmax scores that are emulated, 1/√D by default.
        matching: how α and β are found: `"entropy"`, `"paper"`, or a `Matching`; or a number,
            which is both.
    """
    alpha, beta, key_shift = find_factors(
        q, k, alpha, beta, key_mask, causal, cu_seqlens, scale, matching
    )
    return functional.lln_attention(
        q,
        k,
        v,
        alpha,
        beta,
        key_mask=key_mask,
        causal=causal,
        cu_seqlens=cu_seqlens,
        key_shift=key_shift,
    )


def find_factors(
    q: Tensor,
    k: Tensor,
    alpha: float | Tensor | None,
    beta: float | Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    cu_seqlens: Tensor | None,
    scale: float | None,
    matching: str | float | Matching,
) -> tuple[float | Tensor, float | Tensor, Tensor | None]:
    """The given α and β, or those that match q and k."""
    if alpha is not None and beta is not None:
        return alpha, beta, None
    if alpha is not None or beta is not None:
        raise ValueError("alpha and beta must be given together")
    matching = resolve(matching)
    if causal and matching.fixed is None:
        raise ValueError(
            "causal LLN attention needs alpha and beta: finding them in q and k would leak the "
            "future; give both, or use lln.LLNAttention, which stores calibrated statistics"
        )
    return match(matching, q, k, key_mask=key_mask, cu_seqlens=cu_seqlens, scale=scale)


@register("lln", paper="Nahshan et al. 2023", complexity="O(N)")
class LLNAttention(Attention):
    """Linear Log-Normal attention with moment matching.

    Args:
        matching: how α and β are found: `"entropy"`, `"paper"`, `"frozen"` (entropy by stored
            statistics), or a `Matching`; or a number, which is both.
        max_len: the number of keys that stored statistics assume before calibration.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        matching: str | float | Matching = "entropy",
        kv_heads: int | None = None,
        scale: float | None = None,
        max_len: int | None = None,
    ) -> None:
        super().__init__(heads, head_dim, kv_heads=kv_heads, scale=scale)
        self.matcher = Matcher(
            matching, heads, head_dim, kv_heads=kv_heads, scale=scale, max_len=max_len
        )

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
        return functional.lln_attention(
            q,
            k,
            v,
            found.alpha,
            found.beta,
            key_mask=key_mask,
            causal=causal,
            cu_seqlens=cu_seqlens,
            key_shift=found.key_shift,
        )

    def recurrent(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: LLNState | None = None,
        *,
        key_mask: Tensor | None = None,
    ) -> tuple[Tensor, LLNState]:
        """Causal attention of new tokens that follow `state`, and the state after them."""
        found = self.matcher.frozen(q, k)
        return functional.lln_recurrent(
            q,
            k,
            v,
            found.alpha,
            found.beta,
            state,
            key_mask=key_mask,
            key_shift=found.key_shift,
        )
