"""The layers of an encoder, whatever its tokens are made of."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from lln.attention import Mixer
from lln.attention.saving import from_json, real_float32
from lln.models.configuration import EncoderConfig
from lln.registry import build, build_core, entry


class EncoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """A mixer and a feed-forward network, each in a residual branch with a norm."""

    def __init__(self, config: EncoderConfig, layer: int, max_len: int) -> None:
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.mixer = build_mixer(config, layer, max_len)
        self.mixer_norm = norm_of(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm_of(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Maps `(B, N, C)` to the same shape."""
        if self.norm_first:
            x = x + self.dropout(self.mixer(self.mixer_norm(x), key_mask=key_mask))
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            x = self.mixer_norm(x + self.dropout(self.mixer(x, key_mask=key_mask)))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.contract = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.contract(self.activation(self.expand(x)))
        return out


def build_mixer(config: EncoderConfig, layer: int, max_len: int) -> Mixer:
    """The mixer of a layer. It starts as it was built; only projections around a core do not."""
    name, dim, heads = config.mixer, config.hidden_size, config.num_attention_heads
    options = {"max_len": max_len, **from_json(config.mixer_options)}
    own: Any
    if entry(name).kind == "core":
        with real_float32():
            own = build_core(name, heads=heads, head_dim=dim // heads, **options)
        # While a checkpoint is loaded the model has no memory yet; a core always has.
        device = torch.get_default_device()
        mixer = (own if device.type == "meta" else own.to(device)).as_mixer(dim)
    else:
        place = {"layer": layer, "layers": config.num_hidden_layers}
        own = mixer = build(name, dim=dim, heads=heads, **place, **options)
    for part in own.modules():
        part.starts_by_itself = True
    assert isinstance(mixer, Mixer)
    return mixer


def norm_of(config: EncoderConfig) -> nn.LayerNorm:
    """A norm of vectors of the encoder's width."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
