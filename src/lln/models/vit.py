"""ViT's weights in an encoder of this package."""

from typing import Any

from transformers import ViTForImageClassification, ViTModel

from lln.models.copying import config_like, give_weights
from lln.models.encoder import EncoderPreTrainedModel
from lln.models.images import EncoderForImageClassification, ImageEncoderModel

OURS = {ViTModel: ImageEncoderModel, ViTForImageClassification: EncoderForImageClassification}
NAMES = {
    "vit.": "encoder.",
    "cls_token": "class_token.weight",
    "position_embeddings": "positions.weight",
    "patch_embeddings.projection.": "patches.",
    "attention.q_proj.": "mixer.query.",
    "attention.k_proj.": "mixer.key.",
    "attention.v_proj.": "mixer.value.",
    "attention.o_proj.": "mixer.out.",
    "layernorm_before.": "mixer_norm.",
    "layernorm_after.": "feed_forward_norm.",
    "mlp.fc1.": "feed_forward.expand.",
    "mlp.fc2.": "feed_forward.contract.",
    "layernorm.": "norm.",
}
LEFT_OUT = ("embeddings.mask_token", "pooler.dense.weight", "pooler.dense.bias")
"""This package has no pooler, and masks no patches."""


def from_vit(model: Any) -> EncoderPreTrainedModel:
    """The encoder with softmax attention that computes what a ViT computes in evaluation.

    In training it does not drop attention weights. The rest of a model's dropout is kept.

    Args:
        model: a `ViTModel`, of which the pooler is left out, or a `ViTForImageClassification` of
            transformers.
    """
    if type(model) not in OURS:
        known = ", ".join(kind.__name__ for kind in OURS)
        raise TypeError(f"from_vit takes one of {known}, got {type(model).__name__}")
    if not model.config.qkv_bias:
        raise ValueError("from_vit: config.qkv_bias must be True, projections have biases here")
    ours = OURS[type(model)](config_like(model.config, norm="pre"))
    return give_weights(model, ours, NAMES, LEFT_OUT)
