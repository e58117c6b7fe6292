"""What an encoder is made of."""

from dataclasses import field
from typing import Any, Literal, get_args

from transformers import PreTrainedConfig

from lln.attention.saving import to_json
from lln.functional.checks import check_positive

Norm = Literal["post", "pre"]
Positions = Literal["learned", "none"]
Pooling = Literal["first", "mean"]

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
    """Configuration of an encoder of text or images; by default RoBERTa-base, or ViT's images.

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
        pooling: what a sequence or an image is classified by: its `first` real token, which of an
            image is the class token, or the `mean` over its real tokens, or patches.
        classifier_dropout: in the head of a classifier. By default `hidden_dropout_prob` in
            RoBERTa's head, which is that of `first` tokens of text, and none in the others.
        image_size: height and width of images, a multiple of `patch_size`.
        patch_size: height and width of the squares that are the tokens of an image.
        num_channels: of images.
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
    pooling: Pooling = "first"
    classifier_dropout: float | None = None
    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    bos_token_id: int = 0
    eos_token_id: int = 2
    tie_word_embeddings: bool = True

    def __post_init__(self, **others: Any) -> None:
        self._refuse_unknown(others)
        choices = {"norm": Norm, "positions": Positions, "pooling": Pooling}
        for name, valid in choices.items():
            value = getattr(self, name)
            if value not in get_args(valid):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(valid))}, got {value!r}"
                )
        for name in ("image_size", "patch_size", "num_channels"):
            check_positive(name, getattr(self, name))
        if self.image_size % self.patch_size:
            raise ValueError(
                "image_size must be a multiple of patch_size, got "
                f"image_size={self.image_size}, patch_size={self.patch_size}"
            )
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
        """The longest text, in tokens."""
        return self.max_position_embeddings - self.pad_token_id - 1

    @property
    def image_len(self) -> int:
        """The tokens of an image: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1
