"""Tiny encoders, with weights large enough for attention to matter."""

import torch
from test_contract import options

import lln.models

N, VOCABULARY, PAD = 13, 60, 1
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}


def config(mixer="lln_diag", **more):
    more = {"mixer_options": options(mixer), **SIZES, **more}
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


def some_labels(ids):
    """About a third of the tokens."""
    return ids.masked_fill(torch.rand(ids.shape) > 0.3, -100)
