"""Heads of the encoder: masked language modelling and classification, as RoBERTa's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from lln.models.configuration import EncoderConfig
from lln.models.encoder import EncoderModel, EncoderPreTrainedModel
from lln.models.losses import IGNORED, classification_loss, cross_entropy


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
        self.classifier = ClassificationHead(config)
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
        """Classifies by the first real token; arguments are those of `EncoderModel`, and two more.

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
        # RoBERTa's first token stands at 0; where padding is on the left, it does not.
        first = 0 if attention_mask is None else attention_mask.bool().int().argmax(1)  # (B,)
        logits = self.classifier(x[torch.arange(len(x), device=x.device), first])
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states
        )


class ClassificationHead(nn.Module):
    """Two layers on a vector."""

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
