"""What an encoder is made of."""

from dataclasses import field
from typing import Any, Literal, get_args

from transformers import PreTrainedConfig

from lln.attention.saving import to_json

Norm = Literal["post", "pre"]
Positions = Literal["learned", "none"]

FROM_THE_MODEL = ("dim", "heads", "head_dim", "max_len", "layer", "layers")
OF_EVERY_CONFIG = (
    "attn_implementation",
    "dtype",
    "id2label",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
)
"""What transformers takes in any configuration."""


class EncoderConfig(PreTrainedConfig):  # type: ignore[misc]
    """Configuration of an encoder; sizes and token ids as in RoBERTa, whose base model it is.

    Attributes:
        mixer: what mixes tokens, one of `lln.available()`.
        mixer_options: of the mixer, such as `{"block_size": 64}`; values that JSON can hold, or a
            `lln.matching.Matching`.
        norm: layer norms after each residual sum (`post`, RoBERTa), or before each branch and once
            at the end (`pre`).
        positions: `learned` embeddings, or `none` beside what the mixer itself knows of order.
        max_position_embeddings: rows of their table. As in RoBERTa, the first `pad_token_id + 1`
            are not for tokens: see `max_len`.
        hidden_dropout_prob: of embeddings and of both branches of a layer. There is no dropout of
            attention weights: a linear mixer has none to drop.
        classifier_dropout: in the classification head; `hidden_dropout_prob` by default.
    """

    model_type = "lln"

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    mixer: str = "lln_diag"
    mixer_options: dict[str, Any] = field(default_factory=dict)
    norm: Norm = "post"
    positions: Positions = "learned"
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    bos_token_id: int = 0
    eos_token_id: int = 2
    tie_word_embeddings: bool = True

    def __post_init__(self, **others: Any) -> None:
        self._refuse_unknown(others)
        for name, choices in (("norm", Norm), ("positions", Positions)):
            value, valid = getattr(self, name), get_args(choices)
            if value not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")
        for option in FROM_THE_MODEL:
            if option in self.mixer_options:
                raise ValueError(f"mixer_options: {option} comes from the model, leave it out")
        self.mixer_options = to_json(self.mixer_options)
        super().__post_init__(**others)

    @staticmethod
    def _refuse_unknown(others: dict[str, Any]) -> None:
        if others.get("attn_implementation") not in (None, "eager"):
            raise ValueError("attn_implementation: attention is what `mixer` names, set that")
        if "model_type" in others:  # a file, in which a trainer may have left notes
            return
        valid = (*EncoderConfig.__annotations__, *OF_EVERY_CONFIG)
        unknown = sorted(set(others) - set(valid))
        if unknown:
            raise ValueError(
                f"EncoderConfig has no {', '.join(unknown)}; valid: {', '.join(valid)}"
            )

    @property
    def max_len(self) -> int:
        """The longest sequence, in tokens."""
        return self.max_position_embeddings - self.pad_token_id - 1
