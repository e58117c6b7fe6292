"""An encoder around any mixer, as a model of transformers.

Importing it registers the models with transformers' Auto classes.
"""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError("lln.models needs transformers: pip install 'lln[train]'")

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from lln.models.configuration import EncoderConfig
from lln.models.encoder import EncoderModel
from lln.models.heads import EncoderForMaskedLM, EncoderForSequenceClassification
from lln.models.roberta import from_roberta

AutoConfig.register(EncoderConfig.model_type, EncoderConfig)
AutoModel.register(EncoderConfig, EncoderModel)
AutoModelForMaskedLM.register(EncoderConfig, EncoderForMaskedLM)
AutoModelForSequenceClassification.register(EncoderConfig, EncoderForSequenceClassification)

__all__ = [
    "EncoderConfig",
    "EncoderForMaskedLM",
    "EncoderForSequenceClassification",
    "EncoderModel",
    "from_roberta",
]
