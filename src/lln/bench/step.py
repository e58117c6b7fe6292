"""A training step of an encoder around any mixer, as a cell of `lln bench model`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from lln.registry import parse

WARM_UP = 64  # tokens
MASKED = 0.15  # of the tokens, as in RoBERTa
SPECIAL = 5  # ids below are not words


@dataclass(frozen=True)
class Size:
    """Of a model."""

    layers: int
    dim: int
    heads: int
    hidden: int
    vocabulary: int = 50265


@dataclass(frozen=True)
class StepCell:
    """One training step: forward, backward, AdamW.

    Attributes:
        mixer: a name, with options such as `lln_diag+block_size=128`.
        size: the fields of a `Size`.
        classes: of a classification; 0 for masked language modelling.
        dtype: of autocast; parameters are float32.
    """

    mixer: str
    n: int
    batch: int
    size: Mapping[str, int]
    classes: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2

    def prepare(self, *, small: bool = False) -> Callable[[], object]:
        """The model after a short step, which makes the optimiser's state; and a long one."""
        torch.manual_seed(0)
        model = self._build().to(self.device).train()
        # Fused, as transformers' Trainer has it.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        short = partial(self._step, model, optimizer, *self._batch(min(self.n, WARM_UP)))
        if small:
            return short
        short()
        optimizer.zero_grad()
        return partial(self._step, model, optimizer, *self._batch(self.n))

    def _build(self) -> torch.nn.Module:
        from lln.models import (
            EncoderConfig,
            EncoderForMaskedLM,
            EncoderForSequenceClassification,
        )

        size, (name, options) = Size(**self.size), parse(self.mixer)
        config = EncoderConfig(
            mixer=name,
            mixer_options=options,
            num_hidden_layers=size.layers,
            hidden_size=size.dim,
            num_attention_heads=size.heads,
            intermediate_size=size.hidden,
            vocab_size=size.vocabulary,
            max_position_embeddings=self.n + 2,
            num_labels=max(self.classes, 2),
            pooling="mean" if self.classes else "first",
        )
        if self.classes:
            return EncoderForSequenceClassification(config)
        return EncoderForMaskedLM(config)

    def _batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, n)
        tokens = torch.randint(SPECIAL, self.size["vocabulary"], shape, generator=generator)
        if self.classes:
            labels = torch.randint(self.classes, shape[:1], generator=generator)
        else:
            masked = torch.rand(shape, generator=generator) < MASKED
            labels = tokens.where(masked, -100)
        return tokens.to(self.device), labels.to(self.device)

    def _step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tokens: torch.Tensor,
        labels: torch.Tensor,
    ) -> None:
        optimizer.zero_grad()
        half = self.dtype != "float32"
        kind = torch.device(self.device).type
        with torch.autocast(kind, getattr(torch, self.dtype) if half else None, enabled=half):
            loss = model(tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
