"""RoBERTa's weights in an encoder of this package."""

from typing import Any

from transformers import RobertaForMaskedLM, RobertaForSequenceClassification, RobertaModel

from lln.models.copying import config_like, give_weights
from lln.models.encoder import EncoderModel, EncoderPreTrainedModel
from lln.models.heads import EncoderForMaskedLM, EncoderForSequenceClassification

OURS = {
    RobertaModel: EncoderModel,
    RobertaForMaskedLM: EncoderForMaskedLM,
    RobertaForSequenceClassification: EncoderForSequenceClassification,
}
NAMES = {
    "encoder.layer.": "layers.",
    "roberta.": "encoder.",
    "attention.self.": "mixer.",
    "attention.output.dense.": "mixer.out.",
    "attention.output.LayerNorm.": "mixer_norm.",
    "intermediate.dense.": "feed_forward.expand.",
    "output.dense.": "feed_forward.contract.",
    "output.LayerNorm.": "feed_forward_norm.",
    "embeddings.LayerNorm.": "embeddings.norm.",
    "lm_head.layer_norm.": "lm_head.norm.",
    "classifier.out_proj.": "classifier.out.",
}
LEFT_OUT = ("lm_head.bias", "pooler.dense.weight", "pooler.dense.bias")
"""The bias is that of the decoder again, and this package has no pooler."""


def from_roberta(model: Any) -> EncoderPreTrainedModel:
    """The encoder with softmax attention that computes what a RoBERTa computes in evaluation.

    In training it does not drop attention weights. The rest of a model's dropout is kept.

    Args:
        model: a `RobertaModel`, of which the pooler is left out, a `RobertaForMaskedLM` or a
            `RobertaForSequenceClassification` of transformers.
    """
    if type(model) not in OURS:
        known = ", ".join(kind.__name__ for kind in OURS)
        raise TypeError(f"from_roberta takes one of {known}, got {type(model).__name__}")
    if model.config.is_decoder or model.config.add_cross_attention:
        raise ValueError("from_roberta takes encoders: config.is_decoder must be False")
    return give_weights(model, OURS[type(model)](config_like(model.config)), NAMES, LEFT_OUT)
