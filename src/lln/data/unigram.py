"""How well a model does that knows how often tokens occur, and nothing else."""

from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from lln.data.packing import TokenBlocks


class UnigramEntropy(NamedTuple):
    """Entropy of the frequencies of tokens: the loss that a masked LM has to beat."""

    nats: float
    bits: float


def unigram_entropy(blocks: TokenBlocks, tokenizer: PreTrainedTokenizerFast) -> UnigramEntropy:
    """Entropy per token of the blocks, without special tokens, which no masked LM predicts."""
    counts = blocks.counts(len(tokenizer))
    counts[tokenizer.all_special_ids] = 0
    shares = counts[counts > 0] / counts.sum()
    nats = float(-(shares * np.log(shares)).sum())
    return UnigramEntropy(nats, nats / float(np.log(2)))
