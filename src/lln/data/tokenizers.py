"""Tokenizers as RoBERTa's: byte-level BPE trained on a corpus, plain bytes, or ListOps tokens.

RoBERTa (Liu et al. 2019, arXiv 1907.11692) uses GPT-2's byte-level BPE, with the special tokens at
the ids below, and writes one text as <s> A </s> and two as <s> A </s></s> B </s>.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lln.data.cache import cached
from lln.data.lines import lines_of

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # the id is the place
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())  # a printable character for each byte
LISTOPS = ("[MIN", "[MAX", "[MED", "[SM", "]", *"0123456789")
SMALLEST = len(SPECIALS) + len(BYTES)


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerFast:
    """Loads `"bytes"`, `"listops"`, a folder of `save_pretrained`, or `"hub:owner/name"`."""
    if name == "bytes":
        # A line is one word to it: there is no merge that could cross a word.
        return _wrap(_byte_level(models.BPE(vocab=_numbered(BYTES), merges=[]), words=False))
    if name == "listops":
        tokenizer = Tokenizer(models.WordLevel(_numbered(LISTOPS), unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return _wrap(_with_ends(tokenizer))
    source = str(name).removeprefix("hub:")
    if source == str(name):
        folder = Path(name).expanduser()
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(
                f"'{name}' is no tokenizer: expected bytes, listops, a folder with tokenizer.json, "
                "or hub:owner/name"
            )
        source = str(folder)
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # a damaged file raises what the Rust library likes
        reason = " ".join(str(error).split())
        raise ValueError(f"the tokenizer '{name}' cannot be loaded: {reason}") from error


def train_tokenizer(
    texts: Dataset, vocab_size: int, *, cache: str | Path | None = None
) -> PreTrainedTokenizerFast:
    """Trains byte-level BPE on a corpus; the same corpus gives the same tokenizer.

    Args:
        texts: Corpus with the column `text`.
        vocab_size: Tokens, special ones included; fewer where the corpus has no more.
        cache: Folder for the result; `$XDG_CACHE_HOME/lln` by default.
    """
    if vocab_size < SMALLEST:
        raise ValueError(
            f"vocab_size {vocab_size} leaves no place for {len(BYTES)} bytes and "
            f"{len(SPECIALS)} special tokens: at least {SMALLEST}"
        )

    def train(path: Path) -> None:
        tokenizer = _byte_level(models.BPE(), words=True)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=list(SPECIALS),
            initial_alphabet=BYTES,
            show_progress=sys.stderr.isatty(),
        )
        tokenizer.train_from_iterator(lines_of(texts), trainer, length=len(texts))
        tokenizer.save(str(path))

    content = (part for parts in ([f"bpe {vocab_size}"], lines_of(texts)) for part in parts)
    path = cached("tokenizer.json", content, train, folder=cache)
    return _wrap(Tokenizer.from_file(str(path)))


def _byte_level(model: Any, *, words: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_ends(tokenizer)


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: place for place, token in enumerate([*SPECIALS, *tokens])}


def _with_ends(tokenizer: Tokenizer) -> Tokenizer:
    start, end = (SPECIALS.index(token) for token in ("<s>", "</s>"))
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", end), ("<s>", start), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )
