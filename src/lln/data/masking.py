"""Dynamic masking as RoBERTa's (Liu et al. 2019, section 4.1; fairseq's MaskTokensDataset).

15 % of the tokens are predicted; of these 80 % become <mask>, 10 % a random token, 10 % stay. What
is masked depends on the seed, the epoch and the tokens of the sequence, never on earlier draws: a
resumed run and any number of processes or workers see the same masks.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

IGNORED = -100  # the label that cross-entropy leaves out


class MaskingCollator:
    """Makes a batch for masked language modelling of sequences of token ids.

    For evaluation use a collator of its own and leave its epoch alone: its masks never change.

    Args:
        tokenizer: Has a mask token and a padding token.
        seed: Of the masks.
        share: Of the tokens to predict; at least one of a sequence, so that no loss is 0 / 0.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, seed: int, share: float = 0.15
    ) -> None:
        if tokenizer.mask_token_id is None or tokenizer.pad_token_id is None:
            raise ValueError("tokenizer needs a mask token and a padding token")
        if not 0 < share <= 1:
            raise ValueError(f"share {share} is not above 0 and at most 1")
        self.seed, self.share = seed, share
        self.mask, self.pad = tokenizer.mask_token_id, tokenizer.pad_token_id
        self.is_ordinary = np.ones(len(tokenizer), bool)  # (vocabulary,)
        self.is_ordinary[tokenizer.all_special_ids] = False
        self.ordinary = np.flatnonzero(self.is_ordinary)
        # In shared memory, since workers that outlive an epoch have to learn of the next.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Changes the masks; call it before each epoch, also when resuming within one."""
        self._epoch.fill_(epoch)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns `input_ids`, `attention_mask` and `labels`, each (B, N)."""
        rows = [np.asarray(example["input_ids"], np.int64) for example in examples]
        length = max(map(len, rows))
        ids = np.full((len(rows), length), self.pad)  # (B, N)
        labels = np.full((len(rows), length), IGNORED)  # (B, N)
        for place, row in enumerate(rows):
            masked, wanted = self._masked(row[row != self.pad])
            ids[place, : len(masked)], labels[place, : len(masked)] = masked, wanted
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(ids != self.pad).long(),
            "labels": torch.from_numpy(labels),
        }

    def _masked(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids with masks, and the labels."""
        content = zlib.crc32(ids.tobytes())
        draw = np.random.default_rng([self.seed, int(self._epoch), content])
        places = np.flatnonzero(self.is_ordinary[ids])
        # Rounded up or down by chance, so that the share is right on average.
        count = int(self.share * len(places) + draw.random())
        chosen = draw.permutation(places)[: max(1, count)]
        labels = np.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        fate = draw.random(len(chosen))
        masked = ids.copy()
        masked[chosen[fate < 0.8]] = self.mask
        random = chosen[fate >= 0.9]
        masked[random] = draw.choice(self.ordinary, len(random))
        return masked, labels
