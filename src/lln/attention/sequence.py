"""Attention within whole sequences: what mechanisms share to which positions or lengths matter."""

from torch import Tensor

from lln.attention.base import Attention, Mixer
from lln.functional.checks import check_attention, check_tokens
from lln.functional.precision import no_autocast, upcast
from lln.functional.rows import all_real, rows


class SequenceAttention(Attention):
    """Self-attention of which a subclass writes `attend`, on one sequence per row.

    Padding anywhere and packing are undone before `attend` sees them; heads that share keys get
    copies of them; half precision is float32 within. A packed batch waits for the device once, to
    learn the length of its longest sequence.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        """Attends within each row.

        Args:
            q: `(B, H, N, D)`, float32 or float64, N > 0.
            k: `(B, H, N, D)`.
            v: `(B, H, N, E)`.
            keep: `(B, N)` bool: in each row the real tokens, which come first, and then padding,
                where q, k and v are 0. A row may have no token at all.
            causal: query i sees the keys j ≤ i; False for a mechanism that has no such form.

        Returns:
            `(B, H, N, E)`; finite, and otherwise of no matter, at padding.
        """
        raise NotImplementedError

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
        check_attention(q, k, v, key_mask=key_mask, cu_seqlens=cu_seqlens)
        self.refuse_causal(causal)
        batch, heads, n, _ = q.shape
        if k.shape[2] != n:
            raise NotImplementedError(
                f"{self.name} attends within one sequence: q and k must have the same length, "
                f"got N_q={n}, N_k={k.shape[2]}"
            )
        if n == 0:
            return q.new_zeros(batch, heads, 0, v.shape[3])
        dtype, groups = q.dtype, heads // k.shape[1]
        keep = all_real(batch, n, q.device) if key_mask is None else key_mask
        layout = None
        if key_mask is not None or cu_seqlens is not None:
            layout = rows(keep, cu_seqlens)
            q, k, v, keep = layout.take(q), layout.take(k), layout.take(v), layout.keep
        with no_autocast(q.device):
            q, k, v = upcast(q), upcast(k), upcast(v)
            if groups > 1:
                k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            out = self.attend(q, k, v, keep, causal=causal)
        return (out if layout is None else layout.put(out)).to(dtype)


class SequenceMixer(Mixer):
    """A mixer of which a subclass writes `mix`, on one sequence per row."""

    def mix(self, x: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        """Mixes `(B, N, C)` tokens, N > 0; `keep` and `causal` as in `SequenceAttention`.

        Padding holds zeros on entry, which biases may change; it must reach no real token.
        """
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        check_tokens(x, self.dim, key_mask=key_mask, cu_seqlens=cu_seqlens)
        self.refuse_causal(causal)
        batch, n, _ = x.shape
        if n == 0:
            return x
        keep = all_real(batch, n, x.device) if key_mask is None else key_mask
        if key_mask is None and cu_seqlens is None:
            return self.mix(x, keep, causal=causal)
        layout = rows(keep, cu_seqlens)
        mixed = self.mix(layout.take(x.unsqueeze(1)).squeeze(1), layout.keep, causal=causal)
        return layout.put(mixed.unsqueeze(1)).squeeze(1)
