"""Token blocks of one length, made once and memory-mapped.

FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2; fairseq's `--sample-break-mode complete`):
a block is <s> and whole lines, each followed by </s>, and may cross the end of a document, which
another </s> marks. A line longer than a block, for which fairseq makes a longer block, is split; it
starts in the block of the line before it, so that nothing is lost and little is padding.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from lln.data.cache import cached
from lln.data.lines import lines_of
from lln.data.progress import tracked
from lln.data.reading import batches

LINES_AT_ONCE = 2048


class TokenBlocks(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Blocks of `length` token ids in a file, the last places of a block filled with padding.

    An item is `{"input_ids": (length,), "attention_mask": (length,)}`.

    Args:
        path: File of the ids, block after block, without a header.
        length: Tokens of a block.
        vocab_size: Decides how many bytes an id takes.
        pad_token_id: Id that fills a block.
    """

    def __init__(self, path: Path, length: int, vocab_size: int, pad_token_id: int) -> None:
        self._made_from = path, length, vocab_size, pad_token_id
        self.length, self.pad_token_id = length, pad_token_id
        ids = np.memmap(path, _dtype(vocab_size), mode="r")
        if len(ids) % length:
            raise ValueError(f"{path} does not hold blocks of {length} tokens: delete it")
        self.ids = ids.reshape(-1, length)  # (blocks, length)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.ids[place].astype(np.int64))
        return {"input_ids": ids, "attention_mask": (ids != self.pad_token_id).long()}

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers map the file anew; pickling the array would copy all of it.
        return TokenBlocks, self._made_from

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(int((part != self.pad_token_id).sum()) for part in self._parts())

    @property
    def fill(self) -> float:
        """Share of the places that are not padding."""
        return self.tokens / self.ids.size

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each id occurs, padding included."""
        return sum(
            (np.bincount(part.ravel(), minlength=vocab_size) for part in self._parts()),
            np.zeros(vocab_size, np.int64),
        )

    def _parts(self) -> Iterator[NDArray[Any]]:
        step = max(1, 2**24 // self.length)  # bounds the memory of a pass
        return (self.ids[start : start + step] for start in range(0, len(self), step))


def pack(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerFast,
    length: int,
    *,
    cache: str | Path | None = None,
) -> TokenBlocks:
    """Tokenises a corpus into blocks, or finds them where this was done before.

    Args:
        texts: Corpus with the column `text`.
        tokenizer: Has a beginning, an end and a padding token.
        length: Tokens of a block, special ones included.
        cache: Folder for the blocks; `$XDG_CACHE_HOME/lln` by default.
    """
    if length < 2:
        raise ValueError(f"length {length} leaves no place for text beside <s>: at least 2")
    if None in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        raise ValueError("tokenizer needs a bos_token, an eos_token and a pad_token")

    def make(path: Path) -> None:
        lines = _encode(texts, tokenizer)
        blocks = packed(lines, length - 1, tokenizer.eos_token_id)
        _write_blocks(path, blocks, length, tokenizer)

    content = (part for parts in (_settings(tokenizer, length), lines_of(texts)) for part in parts)
    path = cached("blocks.bin", content, make, folder=cache)
    return TokenBlocks(path, length, len(tokenizer), tokenizer.pad_token_id)


def packed(lines: Iterable[list[int]], size: int, end: int) -> Iterator[list[int]]:
    """Packs token ids of lines, each followed by `end`, into blocks of at most `size`.

    A block of nothing but `end` is left out: it would hold nothing to learn.
    """
    return (block for block in _filled(lines, size, end) if any(token != end for token in block))


def _filled(lines: Iterable[list[int]], size: int, end: int) -> Iterator[list[int]]:
    block: list[int] = []
    for ids in lines:
        line = [*ids, end]
        if len(line) <= size < len(block) + len(line):
            yield block
            block = []
        block += line
        whole = len(block) // size * size
        yield from (block[start : start + size] for start in range(0, whole, size))
        block = block[whole:]
    yield block


def _encode(texts: Dataset, tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    lines = tracked(lines_of(texts), "tokenising", total=sum(1 for _ in lines_of(texts)))
    for batch in batches(lines, LINES_AT_ONCE):
        # Text that spells a special token is text: it must not end a line or hide a word.
        yield from tokenizer(
            batch, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]


def _settings(tokenizer: PreTrainedTokenizerFast, length: int) -> list[str]:
    """What blocks depend on besides the text."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for last_call in ("truncation", "padding"):
        state.pop(last_call)
    specials = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    return [f"full sentences {length} {specials}", json.dumps(state)]


def _write_blocks(
    path: Path, blocks: Iterable[list[int]], length: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    dtype, start, pad = _dtype(len(tokenizer)), tokenizer.bos_token_id, tokenizer.pad_token_id
    with path.open("wb") as file:
        for block in blocks:
            padding = [pad] * (length - 1 - len(block))
            file.write(np.array([start, *block, *padding], dtype).tobytes())
        if not file.tell():
            raise ValueError("the corpus has no text to pack")


def _dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32
