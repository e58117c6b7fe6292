"""The order in which a training reads its examples, a function of the seed alone.

It does not depend on how many processes share the work, nor on where a training was interrupted.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch.utils.data import Dataset

TURN = "turn"  # the pass that an example belongs to, from 1


class Examples(Protocol):
    """A data set: numbered dictionaries."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Mapping[str, Any]: ...


@runtime_checkable
class ChangingExamples(Protocol):
    """A data set whose examples differ from one pass to the next, by its number."""

    def in_epoch(self, place: int, epoch: int) -> Mapping[str, Any]: ...


class Order(Dataset[dict[str, Any]]):
    """The examples of a whole training: pass after pass, each shuffled anew.

    To the Trainer it is one epoch that is read from front to back. Every example says in `TURN` to
    which pass it belongs.

    Args:
        examples: dictionaries.
        length: examples in all, over all passes.
        seed: of the shuffles.
    """

    def __init__(self, examples: Examples, *, length: int, seed: int) -> None:
        self._examples, self._length, self._seed = examples, length, seed
        self._shuffled: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> dict[str, Any]:
        turn, rest = divmod(place, len(self._examples))
        if self._shuffled[0] != turn:
            generator = np.random.default_rng([self._seed, turn])
            self._shuffled = turn, generator.permutation(len(self._examples))
        index, examples = int(self._shuffled[1][rest]), self._examples
        if isinstance(examples, ChangingExamples):
            return {**examples.in_epoch(index, turn + 1), TURN: turn + 1}
        return {**examples[index], TURN: turn + 1}
