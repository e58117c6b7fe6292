"""Decoding: time per token and memory of the past, after short and long texts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.bench import cases
from lln.bench.references import REFERENCES
from lln.bench.timing import Timing, interleave, rounds
from lln.functional.recurrent import state_tensors
from lln.registry import available, entry

AT_ONCE = 16  # tokens per timed call, whose mean hides how coarse a clock is


class Decoder(ABC):
    """One attention that has read `n` tokens and goes on."""

    def __init__(self, name: str, x: cases.Inputs, n: int) -> None:
        self.name, self.x, self.n = name, x, n

    @abstractmethod
    def some_tokens(self) -> object:
        """Reads `AT_ONCE` more, and forgets them again."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """What the past takes."""

    def token(self, place: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of one token."""
        here = slice(place, place + 1)
        return self.x.q[:, :, here], self.x.k[:, :, here], self.x.v[:, :, here]

    def past(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of the text that was read."""
        return self.x.q[:, :, : self.n], self.x.k[:, :, : self.n], self.x.v[:, :, : self.n]


class _Products(Decoder):
    """A sum of kᵀ v, which every linear attention keeps in some form: the limit."""

    def __init__(self, name: str, x: cases.Inputs, n: int) -> None:
        super().__init__(name, x, n)
        _, k, v = self.past()
        self.state = k.mT @ v  # (B, H, D, D)

    def some_tokens(self) -> object:
        state = self.state
        for place in range(AT_ONCE):
            q, k, v = self.token(place)
            state = state + k.mT @ v
            q @ state
        return state

    @property
    def bytes(self) -> int:
        return self.state.nbytes


class _Softmax(Decoder):
    """SDPA over all keys and values, in memory that was set aside: nothing is copied."""

    def __init__(self, name: str, x: cases.Inputs, n: int) -> None:
        super().__init__(name, x, n)
        _, k, v = self.past()
        self.keys, self.values = (F.pad(part, (0, 0, 0, AT_ONCE)) for part in (k, v))

    def some_tokens(self) -> object:
        for place in range(AT_ONCE):
            q, k, v = self.token(place)
            end = self.n + place + 1
            self.keys[:, :, end - 1 : end], self.values[:, :, end - 1 : end] = k, v
            F.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end])
        return self.keys

    @property
    def bytes(self) -> int:
        return sum(part[:, :, : self.n].nbytes for part in (self.keys, self.values))


class _Recurrent(Decoder):
    """A mechanism with a state."""

    def __init__(self, name: str, x: cases.Inputs, n: int) -> None:
        super().__init__(name, x, n)
        self.core: Any = cases.build_core(name, x.q.shape[1], x.q.shape[3], n).to(x.q.device)
        self.state = self.core.recurrent(*self.past())[1]  # type: ignore[operator]

    def some_tokens(self) -> object:
        state = self.state
        for place in range(AT_ONCE):
            state = self.core.recurrent(*self.token(place), state)[1]
        return state

    @property
    def bytes(self) -> int:
        # Of storages: a view would keep all of its base alive.
        return sum(part.untyped_storage().nbytes() for part in state_tensors(self.state))


DECODERS: dict[str, type[Decoder]] = {"products": _Products, "sdpa": _Softmax}


def decodable(names: Sequence[str]) -> list[str]:
    """Those of the cases that go on token by token."""
    return [name for name in names if _decoder(name) is not None]


def _decoder(name: str) -> type[Decoder] | None:
    if name in REFERENCES or name not in available():
        return DECODERS.get(name)
    return _Recurrent if hasattr(entry(name).cls, "recurrent") else None


def steps(names: Sequence[str], lengths: Sequence[int], repeats: int) -> int:
    """How often `measure` calls `advance`."""
    return rounds(len(decodable(names)) * len(lengths), repeats)


@torch.no_grad()
def measure(
    names: Sequence[str],
    lengths: Sequence[int],
    x: cases.Inputs,
    *,
    repeats: int,
    advance: Callable[[], object],
) -> list[tuple[Decoder, Timing]]:
    """Time per token, after all lengths in turns: whether it grows is what is asked.

    Args:
        names: of cases, of which those that cannot decode are left out.
        lengths: of the text before the token, at most as many as `x` has tokens.
        x: the text; it needs `AT_ONCE` tokens at least.
        repeats: rounds, see `interleave`.
        advance: see `steps`.
    """
    decoders = []
    for name in decodable(names):
        decoder = _decoder(name)
        assert decoder is not None
        decoders += [decoder(name, x, n) for n in lengths]
    calls = {str(place): decoder.some_tokens for place, decoder in enumerate(decoders)}
    timings = interleave(
        calls, repeats=repeats, seconds=0.05, device=x.q.device, advance=advance
    ).values()
    return [
        (decoder, Timing(t.median / AT_ONCE, t.minimum / AT_ONCE, t.calls))
        for decoder, t in zip(decoders, timings, strict=True)
    ]
