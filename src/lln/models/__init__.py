"""An encoder of text or images around any mixer, as a model of transformers.

Importing it registers the models with transformers' Auto classes.
"""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError("lln.models needs transformers: pip install 'lln[train]'")

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from lln.models.configuration import EncoderConfig
from lln.models.encoder import EncoderModel
from lln.models.heads import (
    EncoderForMaskedLM,
    EncoderForSequenceClassification,
    EncoderForSequenceMatching,
)
from lln.models.images import EncoderForImageClassification, ImageEncoderModel
from lln.models.roberta import from_roberta
from lln.models.vit import from_vit

AutoConfig.register(EncoderConfig.model_type, EncoderConfig)
AutoModel.register(EncoderConfig, EncoderModel)
AutoModelForMaskedLM.register(EncoderConfig, EncoderForMaskedLM)
AutoModelForSequenceClassification.register(EncoderConfig, EncoderForSequenceClassification)
AutoModelForImageClassification.register(EncoderConfig, EncoderForImageClassification)

__all__ = [
    "EncoderConfig",
    "EncoderForImageClassification",
    "EncoderForMaskedLM",
    "EncoderForSequenceClassification",
    "EncoderForSequenceMatching",
    "EncoderModel",
    "ImageEncoderModel",
    "from_roberta",
    "from_vit",
]
