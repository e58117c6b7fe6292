"""Losses of the heads, in float32 at least.

Each is a mean over the labels, or, where a batch comes in parts, their sum divided by the number of
labels in the whole batch: parts then add up to it, however many labels each one has.
"""

import torch.nn.functional as F
from torch import Tensor

from lln.functional.precision import upcast
from lln.models.configuration import EncoderConfig

IGNORED = -100
"""The label where there is nothing to predict."""


def cross_entropy(logits: Tensor, labels: Tensor, in_batch: int | Tensor | None) -> Tensor:
    """Of `(…, V)` logits and `(…)` labels; 0 if all are ignored.

    Args:
        logits: of any precision.
        labels: integers.
        in_batch: labels in the whole batch; None if this is it.
    """
    total = F.cross_entropy(
        upcast(logits).flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    count = (labels != IGNORED).sum().clamp(min=1) if in_batch is None else in_batch
    return total / count


def classification_loss(
    logits: Tensor, labels: Tensor, config: EncoderConfig, in_batch: int | Tensor | None
) -> Tensor:
    """Of `(B, num_labels)` logits; which loss is `config.problem_type`, or follows from the labels.

    Args:
        logits: of any precision.
        labels: as `EncoderForSequenceClassification` takes them.
        config: of the model.
        in_batch: as in `cross_entropy`.
    """
    problem = config.problem_type
    if problem is None and config.num_labels == 1:
        problem = "regression"
    elif problem is None:
        several = labels.is_floating_point()
        problem = "multi_label_classification" if several else "single_label_classification"
    if problem == "single_label_classification":
        return cross_entropy(logits, labels, in_batch)
    loss = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    logits = upcast(logits).view_as(labels)
    total = loss(logits, labels.to(logits.dtype), reduction="sum")
    return total / (labels.numel() if in_batch is None else in_batch)
