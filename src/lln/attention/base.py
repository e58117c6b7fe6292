"""The two kinds of attention: a *core* mixes values by queries and keys, a *mixer* mixes tokens.

Models see only mixers; `MultiHead` turns a core into one.
"""

import math
from typing import ClassVar

from torch import Tensor, nn

from lln.functional.checks import check_tokens
from lln.registry import entry


class _Named(nn.Module):
    """What cores and mixers share: they know by which name they were registered."""

    name: ClassVar[str]

    def refuse_causal(self, causal: bool) -> None:
        """Raises if a causal form is asked for and the registry knows of none."""
        if causal and not entry(self.name).causal:
            raise NotImplementedError(f"{self.name} has no causal form: causal must be False")


class Attention(_Named):
    """A core: `(B, H, N, D)` queries, keys and values in, `(B, H, N, E)` out.

    Args:
        heads: number of query heads H.
        head_dim: D.
        kv_heads: number of key and value heads, a divisor of `heads`; `heads` by default.
        scale: of softmax scores, 1/√D by default.
    """

    kind: ClassVar[str] = "core"
    shares_queries: ClassVar[bool] = False
    """Keys are made of the queries, and `k` is not read: `MultiHead` projects none."""
    linear_in_values: ClassVar[bool] = True
    """The output is a matrix of q and k times v: see `lln.instruments.matrix_of`."""
    learns_maps: ClassVar[bool] = False
    """It has learned maps of q and k of its own: `lln convert` needs to add none."""

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or head_dim < 1 or self.kv_heads < 1 or heads % self.kv_heads:
            raise ValueError(
                "heads, head_dim and kv_heads must be positive and kv_heads must divide heads, "
                f"got heads={heads}, head_dim={head_dim}, kv_heads={kv_heads}"
            )
        self.scale = 1 / math.sqrt(head_dim) if scale is None else scale

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
        """Attends.

        Args:
            q: `(B, H, N_q, D)`.
            k: `(B, H_kv, N_k, D)`.
            v: `(B, H_kv, N_k, E)`.
            key_mask: `(B, N_k)` bool, True = keep.
            causal: query i sees the keys up to i + N_k − N_q.
            cu_seqlens: `(S + 1,)` bounds of sequences packed into one row.

        Returns:
            `(B, H, N_q, E)`, in q's dtype; 0 for a query that sees no key.
        """
        raise NotImplementedError

    def as_mixer(self, dim: int) -> "Mixer":
        """This core with projections from and to `dim` features."""
        return MultiHead(self, dim)


class Mixer(_Named):
    """A mixer: tokens `(B, N, C)` in, tokens out.

    Args:
        dim: C.
        heads: number of heads.
    """

    kind: ClassVar[str] = "mixer"

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Mixes `(B, N, C)` tokens; masks as in `Attention`."""
        raise NotImplementedError


class MultiHead(Mixer):
    """Projections around a core.

    Args:
        core: the attention.
        dim: C, a multiple of the core's heads.
        bias: of the projections.
    """

    def __init__(self, core: Attention, dim: int, *, bias: bool = True) -> None:
        super().__init__(dim, core.heads)
        if dim != core.heads * core.head_dim:
            raise ValueError(
                f"dim must be heads · head_dim = {core.heads} · {core.head_dim}, got {dim}"
            )
        self.core = core
        kv_dim = core.kv_heads * core.head_dim
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = None if core.shares_queries else nn.Linear(dim, kv_dim, bias=bias)
        self.value = nn.Linear(dim, kv_dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        check_tokens(x, self.dim, key_mask=key_mask, cu_seqlens=cu_seqlens)
        q, v = self._heads(self.query(x)), self._heads(self.value(x))
        k = v if self.key is None else self._heads(self.key(x))
        mixed: Tensor = self.core(q, k, v, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """`(B, N, H · D)` → `(B, H, N, D)`."""
        heads: Tensor = x.unflatten(2, (-1, self.core.head_dim))
        return heads.transpose(1, 2)
