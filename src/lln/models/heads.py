"""Heads of the encoder of text: masked language modelling and classification."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from lln.models.configuration import EncoderConfig
from lln.models.encoder import EncoderModel, EncoderPreTrainedModel, key_mask_of
from lln.models.losses import IGNORED, classification_loss, cross_entropy
from lln.models.pooling import pool


class EncoderForMaskedLM(EncoderPreTrainedModel):
    """The encoder and a distribution over the vocabulary for each token."""

    _tied_weights_keys = {  # noqa: RUF012  transformers wants a plain dictionary
        "lm_head.decoder.weight": "encoder.embeddings.word_embeddings.weight"
    }
    accepts_loss_kwargs = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.encoder = EncoderModel(config)
        self.lm_head = LanguageModelHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The layer that is as wide as the vocabulary."""
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replaces it."""
        self.lm_head.decoder = new_embeddings

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
    ) -> MaskedLMOutput:
        """Predicts tokens; arguments are those of `EncoderModel`, and two more.

        `labels` `(B, N)` are the tokens to predict, −100 where there is nothing to predict. The
        loss is the mean over them, 0 if there are none. `num_items_in_batch` is how many there are
        in the batch that this one is a part of: see `lln.models.losses`.

        Returns:
            The loss, and logits `(B, N, V)`. In training with labels, logits are None: only those
            of the labels are computed, which saves most of the cost of a large vocabulary.
        """
        outputs = self.encoder(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            return_dict=True,
        )
        x, loss, logits = outputs.last_hidden_state, None, None
        if labels is None or not self.training:
            logits = self.lm_head(x)  # (B, N, V)
            if labels is not None:
                loss = cross_entropy(logits, labels, num_items_in_batch)
        else:
            labelled = labels != IGNORED
            at_labels = self.lm_head(x[labelled])  # (labels, V)
            loss = cross_entropy(at_labels, labels[labelled], num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class LanguageModelHead(nn.Module):
    """A layer of the encoder's width, then one of the vocabulary's, whose weight is shared."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(…, C)` to `(…, V)`."""
        out: Tensor = self.decoder(self.norm(F.gelu(self.dense(x))))
        return out


class EncoderForSequenceClassification(EncoderPreTrainedModel):
    """The encoder and a label, or a number, for each sentence or pair of sentences."""

    accepts_loss_kwargs = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = EncoderModel(config)
        by_first = config.pooling == "first"
        self.classifier = ClassificationHead(config) if by_first else ArenaHead(config)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classifies by what `config.pooling` says; arguments of `EncoderModel`, and two more.

        `labels` are classes `(B,)`; numbers `(B,)` or `(B, num_labels)` for a regression; or, where
        several classes may hold at once, 1.0 and 0.0 `(B, num_labels)`. Which of these they are
        says `config.problem_type`; if it is None, a single label means a regression, integers mean
        classes. `num_items_in_batch` is how many there are in the batch that this one is a part of.
        """
        outputs = self.encoder(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            return_dict=True,
        )
        x = outputs.last_hidden_state
        key_mask = key_mask_of(attention_mask, x.shape[:2])
        logits = self.classifier(pool(x, key_mask, self.config.pooling))
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states
        )


class EncoderForSequenceMatching(EncoderPreTrainedModel):
    """The encoder and a label for each pair of texts, which never see each other in it.

    This is the dual encoder of the Long Range Arena's Retrieval: Tay et al. 2021, arXiv 2011.04006,
    `classifier_head_dual` of its code, with the single hidden layer of Skyformer's `SCHeadDual`.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = EncoderModel(config)
        self.classifier = ArenaHead(config, vectors=4)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        other_input_ids: Tensor | None = None,
        other_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classifies by both texts, each of which becomes one vector by `config.pooling`.

        Args:
            input_ids: `(B, N)`, the first texts.
            attention_mask: `(B, N)`, as in `EncoderModel`.
            other_input_ids: `(B, M)`, the second texts.
            other_attention_mask: `(B, M)`.
            labels: as in `EncoderForSequenceClassification`.
            output_hidden_states: as in `EncoderModel`; states are `(2 B, max(N, M), C)`, those of
                the first texts first.
            num_items_in_batch: as in `EncoderForSequenceClassification`.
        """
        if other_input_ids is None or len(other_input_ids) != len(input_ids):
            raise ValueError(
                f"other_input_ids must be the {len(input_ids)} second texts of {len(input_ids)} "
                f"pairs, got {None if other_input_ids is None else len(other_input_ids)}"
            )
        first = key_mask_of(attention_mask, input_ids.shape)
        second = key_mask_of(other_attention_mask, other_input_ids.shape, "other_attention_mask")
        ids, key_mask = self._side_by_side((input_ids, first), (other_input_ids, second))
        outputs = self.encoder(
            ids, key_mask, output_hidden_states=output_hidden_states, return_dict=True
        )
        pooled = pool(outputs.last_hidden_state, key_mask, self.config.pooling)  # (2 B, C)
        a, b = pooled.chunk(2)
        logits = self.classifier(torch.cat([a, b, a * b, a - b], 1))
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states
        )

    def _side_by_side(self, *texts: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
        """Both texts as one batch, padded: each layer then runs once, and is measured once."""
        longest = max(ids.shape[1] for ids, _ in texts)
        padded, masks = [], []
        for ids, mask in texts:
            missing = (0, longest - ids.shape[1])
            mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
            padded.append(F.pad(ids, missing, value=self.config.pad_token_id))
            masks.append(F.pad(mask, missing, value=False))
        return torch.cat(padded), torch.cat(masks)  # (2 B, N) each


class ClassificationHead(nn.Module):
    """RoBERTa's two layers on a vector."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        rate = config.classifier_dropout
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.out = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, C)` to `(B, num_labels)`."""
        x = self.dense(self.dropout(x)).tanh()
        out: Tensor = self.out(self.dropout(x))
        return out


class ArenaHead(nn.Module):
    """The Long Range Arena's two layers on one vector or several: `classifier_head` of its code."""

    def __init__(self, config: EncoderConfig, vectors: int = 1) -> None:
        super().__init__()
        self.dense = nn.Linear(vectors * config.hidden_size, config.intermediate_size)
        self.dropout = nn.Dropout(config.classifier_dropout or 0.0)
        self.out = nn.Linear(config.intermediate_size, config.num_labels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, vectors · C)` to `(B, num_labels)`."""
        out: Tensor = self.out(self.dropout(self.dense(x).relu()))
        return out
