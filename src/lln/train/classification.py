"""What classifiers have in common: batches, and how their answers are scored."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lln.train.order import TURN


def stack(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Makes a batch of examples that are all of one shape."""
    return {
        key: torch.stack([example[key] for example in examples])
        for key in examples[0]
        if key != TURN
    }


def choices(logits: Tensor, labels: Tensor) -> Tensor:
    """`(B, 2)`: loss and chosen class of each example."""
    loss = F.cross_entropy(logits.float(), labels, reduction="none")  # (B,)
    return torch.stack([loss.double(), logits.argmax(1).double()], dim=1)


def accuracy(prediction: Any) -> dict[str, float]:
    """Loss and accuracy over all examples, of their `choices`."""
    loss, chosen = np.asarray(prediction.predictions).T
    return {"loss": float(loss.mean()), "accuracy": float((chosen == prediction.label_ids).mean())}


def sample(count: int, total: int) -> range | list[int]:
    """The places of `count` of `total` examples, the same in every run; 0 is all of them.

    Chosen by chance: sets come sorted by class, or with the classes in turn, and the first ones, or
    every second one, would be of one class.
    """
    if not 0 < count < total:
        return range(total)
    chosen: list[int] = np.sort(np.random.default_rng(0).permutation(total)[:count]).tolist()
    return chosen
