"""Tiny encoders, with weights large enough for attention to matter."""

import torch

import lln.models
from lln.bench.contract import SMALL
from lln.registry import entry

N, VOCABULARY, PAD = 13, 60, 1
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
    "image_size": 12,
    "patch_size": 4,
}


def config(mixer="lln_diag", **more):
    small = {option: SMALL[option] for option in SMALL if option in entry(mixer).options}
    more = {"mixer_options": small, **SIZES, **more}
    return lln.models.EncoderConfig(mixer=mixer, **more)


def build(kind, mixer="lln_diag", **more):
    """A model for evaluation whose parameters are not where they start."""
    torch.manual_seed(1)
    model = getattr(lln.models, kind)(config(mixer, **more)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def tokens(batch=2, n=N):
    return torch.randint(3, VOCABULARY, (batch, n))


def images(batch=2, channels=3, size=12):
    return torch.rand(batch, channels, size, size) * 2 - 1


def some_labels(ids):
    """About a third of the tokens."""
    return ids.masked_fill(torch.rand(ids.shape) > 0.3, -100)
