"""RoBERTa's encoder around any mixer (Liu et al. 2019, arXiv 1907.11692).

With the mixer `softmax` it is RoBERTa, but that attention weights are never dropped out: see
`lln.models.from_roberta`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from lln.attention.saving import finish_loading
from lln.models.configuration import EncoderConfig
from lln.models.layers import EncoderLayer, norm_of


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
        absent = sorted(key for key in info["missing_keys"] if "embeddings." in key)
        if absent:  # text and images have the same config, and transformers would only warn
            raise ValueError(
                f"{cls.__name__} reads what the weights were not made for, they lack {absent[0]}: "
                f"load them as the {' or '.join(model.config.architectures or ['model'])} they are"
            )
        return (model, info) if output_loading_info else model


class LayeredModel(EncoderPreTrainedModel):
    """Embeddings, the layers, and a norm at the end if the layers have theirs first.

    Args:
        config: of the encoder.
        embeddings: makes tokens of what the model reads.
        max_len: how many at most.
    """

    def __init__(self, config: EncoderConfig, embeddings: nn.Module, max_len: int) -> None:
        super().__init__(config)
        self.embeddings = embeddings
        self.layers = nn.ModuleList(
            EncoderLayer(config, layer, max_len) for layer in range(config.num_hidden_layers)
        )
        self.norm = norm_of(config) if config.norm == "pre" else nn.Identity()
        self.post_init()

    def encode(
        self, x: Tensor, key_mask: Tensor | None, output_hidden_states: bool | None
    ) -> BaseModelOutput:
        """Runs embedded tokens `(B, N, C)` through the layers; arguments as in `EncoderModel`."""
        if self.config.output_attentions:
            raise ValueError(
                "config.output_attentions: a mixer returns no weights; see lln.instruments.record"
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        states = [x]
        for layer in self.layers:
            x = layer(x, key_mask)
            states.append(x)
        x = states[-1] = self.norm(x)
        return BaseModelOutput(
            last_hidden_state=x, hidden_states=tuple(states) if output_hidden_states else None
        )


class EncoderModel(LayeredModel):
    """Token ids in, a vector for each token out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, Embeddings(config), config.max_len)

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
        words = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        key_mask = key_mask_of(attention_mask, words.shape[:2])
        x = self.embeddings(words, input_ids, key_mask, token_type_ids)  # (B, N, C)
        return self.encode(x, key_mask, output_hidden_states)


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
        self.norm = norm_of(config)
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


def key_mask_of(
    attention_mask: Tensor | None, shape: torch.Size, name: str = "attention_mask"
) -> Tensor | None:
    """`(B, N)` bool, True = keep, of the mask that a caller gave as `name`."""
    if attention_mask is None:
        return None
    if attention_mask.shape != shape or attention_mask.is_floating_point():
        raise ValueError(
            f"{name} must be bool or integer (B, N) = {tuple(shape)} with 1 = keep, got "
            f"{attention_mask.dtype} {tuple(attention_mask.shape)}"
        )
    return attention_mask.bool()
