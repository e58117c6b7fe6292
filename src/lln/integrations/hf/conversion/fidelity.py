"""How far a model with another attention is from the model that it was."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.integrations.hf.conversion.forward import hidden_states
from lln.integrations.hf.conversion.imitation import beside_softmax


@dataclass(frozen=True)
class Fidelity:
    """What is left of a model.

    Attributes:
        errors: of each layer's attention, in the order of the model's modules: the size of the
            difference from softmax, relative to softmax, both on the input of the original layer.
        cosine: between the embeddings of a passage by both models, the mean over passages. An
            embedding is the mean of the last hidden states.
        correlation: Spearman's, between the similarities of all pairs of passages by both models.
    """

    errors: list[float]
    cosine: float
    correlation: float


@torch.no_grad()
def fidelity(model: Any, batches: list[Tensor], expected: Tensor) -> Fidelity:
    """Measures a model on passages.

    Args:
        model: with another attention, in evaluation mode.
        batches: of token ids.
        expected: their embeddings by the original model.
    """
    with beside_softmax() as sums:
        for ids in batches:
            hidden_states(model, ids)
    totals = [sums[layer] for layer in model.modules() if layer in sums]
    errors = torch.stack([total[0] / total[1] for total in totals]).sqrt()
    found = embeddings(model, batches)
    return Fidelity(
        errors.tolist(),
        (found * expected).sum(1).mean().item(),
        rank_correlation(_similarities(found), _similarities(expected)),
    )


@torch.no_grad()
def embeddings(model: Any, batches: list[Tensor]) -> Tensor:
    """`(passages, C)`, each of length 1."""
    return torch.cat([F.normalize(hidden_states(model, ids).mean(1), dim=1) for ids in batches])


def _similarities(embedded: Tensor) -> Tensor:
    """Of all pairs, `(pairs,)`."""
    first, second = torch.triu_indices(len(embedded), len(embedded), 1)
    return (embedded @ embedded.T)[first, second]


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's, of numbers that are hardly ever equal."""
    ranks = torch.stack([z.argsort().argsort().double() for z in (x, y)])
    return torch.corrcoef(ranks)[0, 1].item()
