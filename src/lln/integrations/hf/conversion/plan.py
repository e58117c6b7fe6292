"""What a conversion shall do, and what it did."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lln.attention.saving import to_json
from lln.files import write_folder, write_json
from lln.integrations.hf.conversion.fidelity import Fidelity


@dataclass(frozen=True)
class Plan:
    """How a model is converted.

    Attributes:
        attention: the core that replaces softmax.
        options: of the core.
        length: tokens of the longest passage to learn from.
        batch_size: passages per step.
        calibration_batches: from which statistics are taken, where the core stores some.
        steps: of layer-by-layer distillation.
        rate: its learning rate.
        finetune_steps: of training the whole model to give the original's last hidden states.
        finetune_rate: its learning rate.
        seed: of the passages that are drawn.
    """

    attention: str = "lln_diag"
    options: dict[str, Any] = field(default_factory=dict)
    length: int = 256
    batch_size: int = 16
    calibration_batches: int = 16
    steps: int = 200
    rate: float = 3e-3
    finetune_steps: int = 0
    finetune_rate: float = 1e-4
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "options": to_json(self.options)}


@dataclass(frozen=True)
class Stage:
    """A stage that is done: how long it took, and what the model was like then."""

    name: str
    seconds: float
    fidelity: Fidelity


@dataclass(frozen=True)
class Conversion:
    """A converted model, and how it came about.

    Attributes:
        model: with its new attention, in evaluation mode.
        tokenizer: the original's.
        plan: what was asked for.
        layers: the paths of the attention layers, in the order of `Fidelity.errors`.
        stages: what was done.
    """

    model: Any
    tokenizer: Any
    plan: Plan
    layers: list[str]
    stages: list[Stage]

    def report(self) -> dict[str, Any]:
        """Everything but the model, for JSON."""
        stages = [asdict(stage) for stage in self.stages]
        return {"plan": self.plan.to_dict(), "layers": self.layers, "stages": stages}

    def save(self, folder: Path, **facts: Any) -> None:
        """Writes a folder for `lln.hf.load`, whole or not at all.

        Args:
            folder: must not exist.
            facts: for `conversion.json`, beside the report.
        """

        def fill(unfinished: Path) -> None:
            self.model.save_pretrained(unfinished)
            self.tokenizer.save_pretrained(unfinished)
            write_json(unfinished / "conversion.json", {**self.report(), **facts})

        write_folder(folder, fill)
