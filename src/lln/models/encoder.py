"""RoBERTa's encoder around any mixer (Liu et al. 2019, arXiv 1907.11692).

With the mixer `softmax` it is RoBERTa, but that attention weights are never dropped out: see
`lln.models.from_roberta`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from lln.attention import Mixer
from lln.attention.saving import finish_loading, from_json, real_float32
from lln.models.configuration import EncoderConfig
from lln.registry import build, build_core, entry


class EncoderPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What the encoder and its heads share: how they start, and how they are loaded."""

    config_class = EncoderConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EncoderLayer",)
    _input_embed_layer = "word_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not getattr(module, "starts_by_itself", False):
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **options: Any) -> Any:
        """As transformers' own, but weights and config have to agree about the mixer."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **options)
        finish_loading(model, ".mixer.", info)
        return (model, info) if output_loading_info else model


class EncoderModel(EncoderPreTrainedModel):
    """Token ids in, a vector for each token out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            EncoderLayer(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encodes a batch.

        Args:
            input_ids: `(B, N)`.
            attention_mask: `(B, N)` bool or integer, 1 = keep; padding may be anywhere.
            token_type_ids: `(B, N)`, which of two sentences a token belongs to; 0 by default.
            inputs_embeds: `(B, N, C)`, instead of `input_ids`.
            output_hidden_states: also return the input of the first layer and the output of each;
                `config.output_hidden_states` by default.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if self.config.output_attentions:
            raise ValueError(
                "config.output_attentions: a mixer returns no weights; see lln.instruments.record"
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        words = (
            self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        )
        key_mask = _key_mask(attention_mask, words.shape[:2])
        x = self.embeddings(words, input_ids, key_mask, token_type_ids)  # (B, N, C)
        states = [x]
        for layer in self.layers:
            x = layer(x, key_mask)
            states.append(x)
        x = states[-1] = self.norm(x)
        return BaseModelOutput(
            last_hidden_state=x, hidden_states=tuple(states) if output_hidden_states else None
        )


class Embeddings(nn.Module):
    """The sum of what a token is, where it stands and which sentence it belongs to."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pad, self.max_len = config.pad_token_id, config.max_len
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=self.pad)
        self.position_embeddings = None
        if config.positions == "learned":
            rows = config.max_position_embeddings
            self.position_embeddings = nn.Embedding(rows, size, padding_idx=self.pad)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.norm = _norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        words: Tensor,
        input_ids: Tensor | None,
        key_mask: Tensor | None,
        token_type_ids: Tensor | None,
    ) -> Tensor:
        """Embeds `(B, N, C)` words, of which `input_ids` tells which are padding, if known."""
        if token_type_ids is None:
            token_type_ids = words.new_zeros(words.shape[:2], dtype=torch.long)
        x = words + self.token_type_embeddings(token_type_ids)  # (B, N, C)
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(self._places(x, input_ids, key_mask))
        out: Tensor = self.dropout(self.norm(x))
        return out

    def _places(self, x: Tensor, input_ids: Tensor | None, key_mask: Tensor | None) -> Tensor:
        """`(B, N)` rows of the table: real tokens count from `pad + 1`, wherever padding stands."""
        if x.shape[1] > self.max_len:
            raise ValueError(
                f"the encoder has positions for {self.max_len} tokens, got N={x.shape[1]}: shorten "
                "the sequence or build it with a larger max_position_embeddings"
            )
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if input_ids is not None:
            real = input_ids != self.pad
        if key_mask is not None:
            real = real & key_mask
        return real.cumsum(1) * real + self.pad


class EncoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """A mixer and a feed-forward network, each in a residual branch with a norm."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.mixer = build_mixer(config, layer)
        self.mixer_norm = _norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _norm(config)
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


def build_mixer(config: EncoderConfig, layer: int) -> Mixer:
    """The mixer of a layer. It starts as it was built; only projections around a core do not."""
    name, dim, heads = config.mixer, config.hidden_size, config.num_attention_heads
    options = {"max_len": config.max_len, **from_json(config.mixer_options)}
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


def _norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def _key_mask(attention_mask: Tensor | None, shape: torch.Size) -> Tensor | None:
    """`(B, N)` bool, True = keep."""
    if attention_mask is None:
        return None
    if attention_mask.shape != shape or attention_mask.is_floating_point():
        raise ValueError(
            f"attention_mask must be bool or integer (B, N) = {tuple(shape)} with 1 = keep, got "
            f"{attention_mask.dtype} {tuple(attention_mask.shape)}"
        )
    return attention_mask.bool()
