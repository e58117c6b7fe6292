"""Moment matching as a module: it measures, remembers, and hands out α and β."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lln.functional.precision import upcast
from lln.matching.factors import Factors, constant_factors, factors_of
from lln.matching.moments import moments
from lln.matching.statistics import Statistics
from lln.matching.width import Curve, Matching, curve, resolve

UNKNOWN_LENGTH = 1024  # the number of keys that stored statistics assume until they are calibrated


class UncalibratedWarning(UserWarning):
    """Causal LLN attention runs with assumed statistics."""


class Matcher(nn.Module):
    """α and β for the queries and keys of one attention layer.

    Stored statistics and the calibration curve are buffers, so a checkpoint keeps both.

    Args:
        matching: a preset's name, a number or a `Matching`: see `resolve`.
        heads: query heads.
        head_dim: D.
        kv_heads: key heads; all heads by default.
        scale: of the softmax scores that are emulated, 1/√D by default.
        max_len: the number of keys to assume before calibration.
    """

    log_lengths: Tensor
    curve: Tensor
    columns: Tensor | None
    stored: Tensor
    batches: Tensor
    _before: Tensor
    _newest: Tensor

    def __init__(
        self,
        matching: str | float | Matching,
        heads: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        scale: float | None = None,
        max_len: int | None = None,
    ) -> None:
        super().__init__()
        self.matching = resolve(matching)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, head_dim
        self.scale = 1 / math.sqrt(head_dim) if scale is None else scale
        if self.matching.fixed is not None:
            return  # there is nothing to look up or to store
        log_lengths, values, columns = curve(self.matching, head_dim)
        self.register_buffer("log_lengths", log_lengths)
        self.register_buffer("curve", values)
        self.register_buffer("columns", columns)
        self._observing = False
        self._warned = False
        if self.matching.statistics in ("auto", "frozen", "running"):
            assumed = self._pack(
                Statistics(
                    torch.ones(1, self.heads),
                    torch.ones(1, self.kv_heads),
                    torch.full((1, self.heads), self.scale**2 * head_dim),
                    torch.zeros(1, self.kv_heads, head_dim),
                    torch.full((1, 1), math.log(max_len or UNKNOWN_LENGTH)),
                    torch.zeros(1, self.heads),
                )
            )
            self.register_buffer("stored", assumed)
            self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        if self.matching.statistics == "running":
            self.register_buffer("_before", assumed.clone(), persistent=False)
            self.register_buffer("_newest", torch.full_like(assumed, torch.nan), persistent=False)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Factors:
        """α, β and the mean key for `(B, H, N, D)` queries and keys."""
        if self.matching.fixed is not None:
            return constant_factors(self.matching.fixed, q, k)
        source = self.matching.statistics
        if source == "auto":
            source = "frozen" if causal else "sequence"
        if causal and source in ("sequence", "batch"):
            raise ValueError(
                f"matching.statistics={source!r} reads the whole sequence and would leak the "
                "future into causal attention; use 'frozen' (see lln.matching.calibrating) or "
                "'running'"
            )
        if source == "frozen" and not self._observing:
            return self._of_stored()
        if source == "running" and not (self._observing or self.training):
            return self._of_stored()
        newest, found = moments(
            self.matching,
            self._curve,
            q,
            k,
            key_mask=key_mask,
            cu_seqlens=cu_seqlens,
            scale=self.scale,
        )
        if self._observing:
            self._average(self._pack(newest), 1 / (self.batches + 1))
        if source in ("sequence", "batch"):
            return found
        if self._observing:
            return self._of_stored()
        return self._factors(self._unpack(self._run(self._pack(newest))))

    def frozen(self, q: Tensor, k: Tensor) -> Factors:
        """α and β that do not depend on what is in q and k: one row, for any sequence."""
        if self.matching.fixed is not None:
            return constant_factors(self.matching.fixed, q, k)
        if self._observing:
            raise ValueError(
                "calibrating measures whole sequences, and a recurrent step has its last tokens "
                "alone: call forward on texts, or generate with use_cache=False"
            )
        return self._of_stored()

    def _of_stored(self) -> Factors:
        if not hasattr(self, "stored"):
            raise ValueError(
                f"matching.statistics={self.matching.statistics!r} stores nothing to decode with; "
                "use 'auto', 'frozen' or 'running'"
            )
        if not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            if not self.batches.is_meta and self.batches.item() == 0:
                warnings.warn(
                    "LLN attention was never calibrated and takes σ_q = σ_k = 1; run some data "
                    "through the model inside `with lln.matching.calibrating(model):`",
                    UncalibratedWarning,
                    stacklevel=3,
                )
        return self._factors(self._unpack(upcast(self.stored)))

    def forget_newest(self) -> None:
        """Running averages go on from what is stored, as after construction."""
        if self.matching.statistics == "running":
            self._newest.fill_(torch.nan)

    def _factors(self, statistics: Statistics) -> Factors:
        return factors_of(self._curve, statistics, self.matching.center_keys)

    @property
    def _curve(self) -> Curve:
        return Curve(self.log_lengths, self.curve, self.columns)

    @torch.no_grad()
    def _run(self, newest: Tensor) -> Tensor:
        """The averages before this step; the step itself counts from the next one on."""
        # Gradient checkpointing runs a forward twice. The second run sees the same numbers, and
        # has to get the averages that the first one got.
        again = newest.eq(self._newest).all()
        before = torch.where(again, self._before, self.stored)
        weight = torch.clamp(1 / (self.batches + 1), min=self.matching.momentum)
        self._average(newest, torch.where(again, 0, weight))
        self.batches -= again.long()
        self._before.copy_(before)
        self._newest.copy_(newest)
        return before

    @torch.no_grad()
    def _average(self, newest: Tensor, weight: Tensor) -> None:
        self.stored += weight * (newest - self.stored)
        self.batches += 1

    def _pack(self, statistics: Statistics) -> Tensor:
        """The mean over rows, as one vector."""
        return torch.cat([x.mean(0).flatten() for x in statistics]).float()

    def _unpack(self, vector: Tensor) -> Statistics:
        heads, kv_heads = self.heads, self.kv_heads
        sizes = (heads, kv_heads, heads, kv_heads * self.head_dim, 1, heads)
        query, key, score, mean, length, correction = vector.unsqueeze(0).split(sizes, 1)
        mean = mean.unflatten(1, (kv_heads, self.head_dim))
        return Statistics(query, key, score, mean, length, correction)

    def extra_repr(self) -> str:
        return f"{self.matching}, heads={self.heads}, head_dim={self.head_dim}"


@contextmanager
def calibrating(model: nn.Module) -> Iterator[None]:
    """Fills the stored statistics of every LLN layer in `model` from the data run inside it.

    What earlier calls stored is replaced. Inside, causal outputs know the statistics of their own
    batch: throw them away.

    Example:
        with lln.matching.calibrating(model), torch.no_grad():
            for batch in batches:
                model(batch)
    """
    matchers = [m for m in model.modules() if isinstance(m, Matcher) and hasattr(m, "stored")]
    if not matchers:
        raise ValueError("model has no LLN attention that stores statistics")
    for matcher in matchers:
        matcher._observing = True
        matcher.batches.zero_()
    try:
        yield
    finally:
        for matcher in matchers:
            matcher._observing = False
