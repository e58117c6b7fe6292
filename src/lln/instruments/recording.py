"""What a recording holds."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from lln.attention import Attention
from lln.files import write
from lln.instruments.matrix import AttentionMatrix


@dataclass(frozen=True)
class Capture:
    """What a layer's attention read in the last measured call; tensors as in `Attention`.

    Attributes:
        name: of the module, within the model.
        core: the attention; for a model of transformers, a softmax core with its scaling.
        matrix: its P.
    """

    name: str
    core: Attention
    q: Tensor
    k: Tensor
    key_mask: Tensor | None
    causal: bool
    matrix: AttentionMatrix


@dataclass
class Recording:
    """What `record` measured.

    Attributes:
        rows: a dict for each measured forward pass, layer and head. Means over the sequences of the
            batch: `n` real keys, `temperature` and `temperature_paper`, `entropy` in bits and its
            standard error `entropy_error`, `gap`, and `alpha` and `beta` of LLN. None where there
            is no such number. `layer` counts the attentions of a forward pass in their order, and
            `step` the forward passes.
        captures: of each layer, with `keep`.
        skipped: why a layer was not measured, by its name.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    captures: dict[int, Capture] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All but the captures."""
        return {"rows": self.rows, "skipped": self.skipped}

    def lines(self) -> str:
        """The rows as JSON, one a line."""
        return "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows)

    def save(self, path: Path | str) -> None:
        """Writes the rows to `path`, as JSON Lines."""
        write(Path(path), lambda file: file.write_text(self.lines(), encoding="utf-8"))
