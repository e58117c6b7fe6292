"""Weights of models of transformers in encoders of this package."""

from collections.abc import Iterable, Mapping
from typing import Any

from lln.models.configuration import EncoderConfig
from lln.models.encoder import EncoderPreTrainedModel


def config_like(config: Any, **changes: Any) -> EncoderConfig:
    """An encoder with softmax attention, and with all that another config shares with ours."""
    fields = (*EncoderConfig.__annotations__, "id2label", "label2id", "problem_type")
    same = {field: getattr(config, field) for field in fields if hasattr(config, field)}
    return EncoderConfig(**{**same, "mixer": "softmax", **changes})


def give_weights(
    theirs: Any, ours: EncoderPreTrainedModel, names: Mapping[str, str], left_out: Iterable[str]
) -> EncoderPreTrainedModel:
    """Copies weights, device, precision and mode into `ours`, and returns it.

    Args:
        theirs: a model of transformers.
        ours: of the same shape.
        names: what part of a weight's name becomes what, in this order.
        left_out: weights for which ours has no place.
    """
    ours.to(theirs.device, theirs.dtype).train(theirs.training)
    places, weights = ours.state_dict(), {}
    for name, weight in theirs.state_dict().items():
        if name not in left_out:
            for old, new in names.items():
                name = name.replace(old, new)
            # A table of one row or more is (rows, C) here, and may be (1, rows, C) there.
            weights[name] = weight.view_as(places[name]) if name in places else weight
    ours.load_state_dict(weights)
    return ours
