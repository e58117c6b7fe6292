"""Attention matrices P that are never formed: their rows, and products with P and its transpose.

A measure asks for nothing else, so it works for every attention and costs what the attention's best
form costs. Padded queries and keys are outside P: their rows and columns are 0.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.functional.checks import check_attention, check_key_mask
from lln.functional.precision import no_autocast, or_zero, upcast
from lln.functional.rows import all_real
from lln.functional.softmax import blank, masked_softmax, softmax_attention

ELEMENTS = 2**22  # of P at a time, where its rows are streamed


class AttentionMatrix:
    """P `(B, H, N_q, N_k)`; a subclass defines at least `rows`.

    Args:
        shape: (B, H, N_q, N_k).
        key_mask: `(B, N_k)` bool, True = keep. Where N_q = N_k it holds for the queries too.
        like: has the dtype, float32 or float64, and the device of P.

    Attributes:
        shape: (B, H, N_q, N_k).
        keep: `(B, N_k)` bool, the real keys.
        queries: `(B, N_q)` bool, the real queries.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], key_mask: Tensor | None, like: Tensor
    ) -> None:
        batch, _, n_q, n_k = shape
        if key_mask is not None:
            check_key_mask(key_mask, batch, n_k)
        self.shape, self.dtype, self.device = shape, like.dtype, like.device
        self.keep = all_real(batch, n_k, like.device) if key_mask is None else key_mask
        self.queries = self.keep if n_q == n_k else all_real(batch, n_q, like.device)

    def rows(self, index: Tensor) -> Tensor:
        """Rows of P, `(B, H, r, N_k)`.

        Args:
            index: `(r,)` long, for all sequences alike, or `(B, r)`.
        """
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """P x, `(B, H, N_q, m)`, for x `(B, H, N_k, m)`."""
        parts = [self.rows(index) @ x for index in self._row_blocks()]
        return torch.cat(parts, 2) if parts else x.new_zeros(*self.shape[:3], x.shape[3])

    def adjoint(self, y: Tensor) -> Tensor:
        """Pᵀ y, `(B, H, N_k, m)`, for y `(B, H, N_q, m)`."""
        batch, heads, _, n_k = self.shape
        total = y.new_zeros(batch, heads, n_k, y.shape[3])
        for index in self._row_blocks():
            total += self.rows(index).mT @ y[:, :, index]
        return total

    def _row_blocks(self) -> Iterator[Tensor]:
        batch, heads, n_q, n_k = self.shape
        size = max(1, ELEMENTS // max(1, batch * heads * n_k))
        for start in range(0, n_q, size):
            yield torch.arange(start, min(start + size, n_q), device=self.device)

    def _blank_padded_queries(self, x: Tensor) -> Tensor:
        return x.masked_fill(~self.queries[:, None, :, None], 0)


def take(x: Tensor, index: Tensor) -> Tensor:
    """The tokens `index`, `(r,)` or `(B, r)`, of `(B, H, N, D)`."""
    if index.dim() == 1:
        return x[:, :, index]
    index = index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def _per_sequence(index: Tensor) -> Tensor:
    """`(B or 1, r)`."""
    return index if index.dim() == 2 else index.unsqueeze(0)


class Dense(AttentionMatrix):
    """A matrix that is there.

    Args:
        p: `(B, H, N_q, N_k)`.
        key_mask: `(B, N_k)` bool, True = keep.
    """

    def __init__(self, p: Tensor, key_mask: Tensor | None = None) -> None:
        if p.dim() != 4 or not p.is_floating_point():
            shape = tuple(p.shape)
            raise ValueError(f"P must be floats of shape (B, H, N_q, N_k), got {p.dtype} {shape}")
        p = upcast(p.detach())
        batch, heads, n_q, n_k = p.shape
        super().__init__((batch, heads, n_q, n_k), key_mask, p)
        if key_mask is not None:
            p = self._blank_padded_queries(p).masked_fill(~self.keep[:, None, None, :], 0)
        self.p = p

    def rows(self, index: Tensor) -> Tensor:
        return take(self.p, index)

    def product(self, x: Tensor) -> Tensor:
        return self.p @ x

    def adjoint(self, y: Tensor) -> Tensor:
        return self.p.mT @ y


class SoftmaxMatrix(AttentionMatrix):
    """softmax(scale · q kᵀ), streamed: O(N² D) a product, O(N) memory.

    Args:
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`, H a multiple of H_kv.
        scale: 1/√D by default.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: query i sees the keys up to i + N_k − N_q.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        scale: float | None = None,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> None:
        check_attention(q, k, k, key_mask=key_mask)
        batch, heads, n_q, dim = q.shape
        q, k = upcast(q.detach()), upcast(k.detach())
        super().__init__((batch, heads, n_q, k.shape[2]), key_mask, q)
        self._q = self._blank_padded_queries(q) * (1 / math.sqrt(dim) if scale is None else scale)
        self._k = blank(k, self.keep).repeat_interleave(heads // k.shape[1], dim=1)
        self._key_mask, self._causal = key_mask, causal

    def product(self, x: Tensor) -> Tensor:
        if self._causal:  # SDPA would need a mask of N² elements
            return super().product(x)
        # SDPA avoids the N×N matrix only where values are as wide as queries.
        v = F.pad(x, (0, max(0, self._q.shape[3] - x.shape[3])))
        with no_autocast(self.device):
            out = softmax_attention(self._q, self._k, v, key_mask=self._key_mask, scale=1.0)
        return self._blank_padded_queries(out[..., : x.shape[3]])

    def rows(self, index: Tensor) -> Tensor:
        n_q, n_k = self.shape[2:]
        visible = self.keep[:, None, :] & take(self.queries[:, None, :, None], index)[:, 0]
        if self._causal:
            last = (_per_sequence(index) + n_k - n_q).unsqueeze(-1)  # (B or 1, r, 1)
            visible = visible & (torch.arange(n_k, device=self.device) <= last)
        with no_autocast(self.device):
            return masked_softmax(take(self._q, index) @ self._k.mT, visible.unsqueeze(1))


class FactoredMatrix(AttentionMatrix):
    """P = A Bᵀ with the rows of A and the columns of B summing to 1: O(N F) a product.

    A query that weighs no key has a row of zeros in A, a feature that no key has a column of zeros
    in B.

    Args:
        a: `(B, H, N_q, F)`.
        b: `(B, H, N_k, F)`.
        key_mask: `(B, N_k)` bool, True = keep; a and b are 0 at padding.
    """

    def __init__(self, a: Tensor, b: Tensor, key_mask: Tensor | None = None) -> None:
        batch, heads, n_q, _ = a.shape
        super().__init__((batch, heads, n_q, b.shape[2]), key_mask, a)
        self.a, self.b = a, b

    @classmethod
    def of_features(
        cls, phi_q: Tensor, phi_k: Tensor, key_mask: Tensor | None = None
    ) -> "FactoredMatrix":
        """Of linear attention by features Φ(q) `(B, H, N_q, F)`, Φ(k) `(B, H_kv, N_k, F)` ≥ 0."""
        if key_mask is not None:
            phi_k = blank(phi_k, key_mask)
        total = phi_k.sum(-2, keepdim=True)  # (B, H_kv, 1, F)
        b = phi_k / total.masked_fill(total == 0, 1)
        groups = phi_q.shape[1] // phi_k.shape[1]
        a = phi_q * total.repeat_interleave(groups, dim=1)
        weight = a.sum(-1, keepdim=True)
        a = a / weight.masked_fill(weight == 0, 1)
        return cls(_blank_queries(a, b, key_mask), b.repeat_interleave(groups, dim=1), key_mask)

    @classmethod
    def of_log_features(
        cls, log_q: Tensor, log_k: Tensor, key_mask: Tensor | None = None
    ) -> "FactoredMatrix":
        """The same from log Φ(q) and log Φ(k), by the two softmaxes of LLN: exact at any scale."""
        if key_mask is not None:
            log_k = log_k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        # Of no key at all amax has no maximum, and the sum is 0.
        largest = log_k.amax if log_k.shape[2] else log_k.sum
        peak = or_zero(largest(-2, keepdim=True))  # (B, H_kv, 1, F)
        b = (log_k - peak).exp()
        total = b.sum(-2, keepdim=True)
        total = total.masked_fill(total == 0, 1)
        # Only differences between features matter: without their common part z keeps its digits.
        z = peak - peak.amax(-1, keepdim=True) + total.log()
        b = b / total
        groups = log_q.shape[1] // log_k.shape[1]
        a = (log_q + z.repeat_interleave(groups, dim=1)).softmax(-1)
        return cls(_blank_queries(a, b, key_mask), b.repeat_interleave(groups, dim=1), key_mask)

    def rows(self, index: Tensor) -> Tensor:
        return take(self.a, index) @ self.b.mT

    def product(self, x: Tensor) -> Tensor:
        return self.a @ (self.b.mT @ x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.b @ (self.a.mT @ y)


def _blank_queries(a: Tensor, b: Tensor, key_mask: Tensor | None) -> Tensor:
    return a if key_mask is None or a.shape[2] != b.shape[2] else blank(a, key_mask)


class CoreMatrix(AttentionMatrix):
    """Any attention that is linear in v: P x is the attention applied to x, Pᵀ y its gradient.

    Args:
        core: called as `core(q, k, v, key_mask=…, causal=…)`, with all else fixed.
        q: `(B, H, N_q, D)`.
        k: `(B, H_kv, N_k, D)`.
        key_mask: `(B, N_k)` bool, True = keep.
        causal: as in `Attention`.
    """

    def __init__(
        self,
        core: Callable[..., Tensor],
        q: Tensor,
        k: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> None:
        check_attention(q, k, k, key_mask=key_mask)
        batch, heads, n_q, _ = q.shape
        q, k = upcast(q.detach()), upcast(k.detach())
        super().__init__((batch, heads, n_q, k.shape[2]), key_mask, q)
        self._groups = heads // k.shape[1]
        # Junk at padding would reach gradients: 0 · NaN is NaN.
        q, k = self._blank_padded_queries(q), blank(k, self.keep)
        self._attend = partial(core, q, k, key_mask=key_mask, causal=causal)

    def rows(self, index: Tensor) -> Tensor:
        batch, heads, n_q, _ = self.shape
        position = torch.arange(n_q, device=self.device)[:, None]
        unit = (position == _per_sequence(index).unsqueeze(1)).to(self.dtype)  # (B or 1, N_q, r)
        return self.adjoint(unit[:, None].expand(batch, heads, -1, -1)).mT

    @torch.no_grad()
    def product(self, x: Tensor) -> Tensor:
        if 0 in self.shape:
            return x.new_zeros(*self.shape[:3], x.shape[3])
        return self._blank_padded_queries(self._own(self._attend(self._shared(x))))

    def adjoint(self, y: Tensor) -> Tensor:
        y = self._blank_padded_queries(y)
        batch, heads, _, n_k = self.shape
        if 0 in self.shape:
            return y.new_zeros(batch, heads, n_k, y.shape[3])
        with torch.inference_mode(False), torch.enable_grad():
            x = y.new_zeros(batch, heads, n_k, y.shape[3], requires_grad=True)
            (gradient,) = torch.autograd.grad(self._own(self._attend(self._shared(x))), x, y)
        return gradient.masked_fill(~self.keep[:, None, :, None], 0)

    def _shared(self, x: Tensor) -> Tensor:
        """`(B, H, N_k, m)` as values `(B, H_kv, N_k, G · m)`: a group's heads share their keys."""
        parts: Tensor = x.unflatten(1, (-1, self._groups))  # (B, H_kv, G, N_k, m)
        return parts.transpose(2, 3).flatten(3, 4)

    def _own(self, out: Tensor) -> Tensor:
        """What each head made of its own values: `(B, H, N_q, G · m)` → `(B, H, N_q, m)`."""
        parts: Tensor = out.unflatten(3, (self._groups, -1)).unflatten(1, (-1, self._groups))
        return parts.diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)
