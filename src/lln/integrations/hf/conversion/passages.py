"""A text as batches of token ids: some to learn from, and others to be judged by."""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HELD_OUT = 0.1
"""The share at the end of a text that is not learned from."""
JUDGED = 64
"""Passages to be judged by: two thousand pairs of them are enough for a correlation."""
SHORTEST = 1 / 8
"""Of the longest passage: a model shall not know one length only."""


@dataclass(frozen=True)
class Passages:
    """Passages of a text, each with the marks at both ends that the tokenizer puts there.

    Args:
        learned: `(T,)` token ids to learn from.
        held_out: `(T,)` token ids that follow them.
        start: the tokens before a passage.
        end: the tokens after it.
        length: the longest passage, with both.
    """

    learned: Tensor
    held_out: Tensor
    start: tuple[int, ...]
    end: tuple[int, ...]
    length: int

    def batch(self, step: int, *, size: int, seed: int) -> Tensor:
        """Token ids `(size, N)` of random places, the same for the same step and seed.

        N differs from step to step, log-uniformly up to the longest.
        """
        # Generators read the low 32 bits of a seed, so both have to show there.
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        drawn = torch.rand((), generator=generator).item()
        n = round(math.exp(drawn * math.log(SHORTEST)) * self.length) - self._marks
        n = max(n, 1)
        places = torch.randint(len(self.learned) - n + 1, (size,), generator=generator)
        return self._marked(self.learned.unfold(0, n, 1)[places])

    def judged(self, *, size: int) -> list[Tensor]:
        """The passages at the beginning of what is held out, in batches of `size`."""
        n = self.length - self._marks
        whole = self.held_out[: len(self.held_out) // n * n].view(-1, n)[:JUDGED]
        return list(self._marked(whole).split(size))

    @property
    def checksum(self) -> int:
        """Tells one text from another."""
        return zlib.crc32(torch.cat([self.learned, self.held_out]).numpy().tobytes())

    @property
    def _marks(self) -> int:
        return len(self.start) + len(self.end)

    def _marked(self, ids: Tensor) -> Tensor:
        start, end = (torch.tensor(marks, dtype=ids.dtype) for marks in (self.start, self.end))
        rows = len(ids)
        return torch.cat([start.expand(rows, -1), ids, end.expand(rows, -1)], 1)


def passages(lines: list[str], tokenizer: Any, length: int) -> Passages:
    """Cuts a text into passages.

    Args:
        lines: of the text.
        tokenizer: of transformers.
        length: tokens of the longest passage.
    """
    pieces = ["\n".join(lines[i : i + 1000]) for i in range(0, len(lines), 1000)]
    ids = tokenizer(pieces, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    tokens = torch.tensor([token for piece in ids for token in piece])
    split = int(len(tokens) * (1 - HELD_OUT))
    start, end = _marks(tokenizer)
    if length <= len(start) + len(end) or len(tokens) - split < 2 * length:
        raise ValueError(
            f"the text has {len(tokens)} tokens, and passages of {length} need at least "
            f"{math.ceil(2 * length / HELD_OUT)}: give a longer text, or a smaller length"
        )
    return Passages(tokens[:split], tokens[split:], start, end, length)


def _marks(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before a text and after it."""
    word = tokenizer("a", add_special_tokens=False)["input_ids"]
    marked = tokenizer("a")["input_ids"]
    place = marked.index(word[0])
    return tuple(marked[:place]), tuple(marked[place + len(word) :])
