"""ViT's encoder of images around any mixer (Dosovitskiy et al. 2021, arXiv 2010.11929).

With the mixer `softmax` and `norm="pre"` it is Hugging Face's ViT, but that attention weights are
never dropped out: see `lln.models.from_vit`.
"""

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput
from transformers.utils import can_return_tuple

from lln.models.configuration import EncoderConfig
from lln.models.encoder import EncoderPreTrainedModel, LayeredModel
from lln.models.losses import classification_loss
from lln.models.pooling import pool


class ImageEncoderModel(LayeredModel):
    """Images in, a vector for the class token and for each patch out."""

    main_input_name = "pixel_values"
    _input_embed_layer = "patches"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, PatchEmbeddings(config), config.image_len)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool | None = None
    ) -> BaseModelOutput:
        """Encodes a batch.

        Args:
            pixel_values: `(B, num_channels, image_size, image_size)`, as ViT's from −1 to 1.
            output_hidden_states: as in `EncoderModel`.
        """
        return self.encode(self.embeddings(pixel_values), None, output_hidden_states)


class PatchEmbeddings(nn.Module):
    """The class token, then the patches from left to right and downwards."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.shape = (config.num_channels, config.image_size, config.image_size)
        size, patch = config.hidden_size, config.patch_size
        self.patches = nn.Conv2d(config.num_channels, size, patch, stride=patch)
        # Tables, of which transformers knows how they start, rather than bare parameters.
        self.class_token = nn.Embedding(1, size)
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.image_len, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixels: Tensor) -> Tensor:
        """Embeds `(B, channels, height, width)` pixels as `(B, 1 + patches, C)`."""
        if pixels.shape[1:] != self.shape or not pixels.is_floating_point():
            channels, size, _ = self.shape
            raise ValueError(
                f"pixel_values must be floats (B, {channels}, {size}, {size}), as num_channels and "
                f"image_size of the config say, got {pixels.dtype} {tuple(pixels.shape)}"
            )
        pixels = pixels.to(self.patches.weight.dtype)
        patches = self.patches(pixels).flatten(2).mT  # (B, patches, C)
        first = self.class_token.weight.expand(len(patches), 1, -1)
        x = torch.cat([first, patches], 1)  # (B, 1 + patches, C)
        if self.positions is not None:
            x = x + self.positions.weight
        out: Tensor = self.dropout(x)
        return out


class EncoderForImageClassification(EncoderPreTrainedModel):
    """The encoder and a label, or a number, for each image."""

    main_input_name = "pixel_values"
    _input_embed_layer = "patches"
    accepts_loss_kwargs = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = ImageEncoderModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout or 0.0)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
    ) -> ImageClassifierOutput:
        """Classifies by the class token, or by the mean over patches: see `config.pooling`.

        Arguments are those of `ImageEncoderModel`, and `labels` and `num_items_in_batch` of
        `EncoderForSequenceClassification`.
        """
        outputs = self.encoder(pixel_values, output_hidden_states, return_dict=True)
        x, pooling = outputs.last_hidden_state, self.config.pooling
        pooled = pool(x if pooling == "first" else x[:, 1:], None, pooling)  # (B, C)
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)
