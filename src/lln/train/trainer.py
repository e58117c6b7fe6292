"""The Trainer of transformers, but that what it saves is whole or absent.

Weights are safetensors. The Trainer's own files for the optimizer, the schedule and the random
state are torch's, which it reads with `weights_only=True`: no code in a checkpoint is ever run.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import Trainer

from lln.train.callbacks import TIMES
from lln.train.checkpoints import STAGING, publish, settle
from lln.train.order import Examples
from lln.train.record import Record

BEST = "model"


class NotSaved(OSError):
    """Something could not be written; what was saved before is still there."""


class RunTrainer(Trainer):  # type: ignore[misc]
    """Writes checkpoints and the best model of a run.

    Args:
        record: of the run.
        keep: so many checkpoints.
        best: the metric by which models are compared.
        options: of `transformers.Trainer`.
    """

    def __init__(self, *, record: Record, keep: int, best: str, **options: Any) -> None:
        super().__init__(**options)
        self.record, self.keep, self.best = record, keep, best
        self._kind = type(options["model"])
        self._staging: Path | None = None

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """As the Trainer's own, and saves the model if it is the best so far."""
        metrics: dict[str, float] = super().evaluate(*args, **options)
        if self.record.best(self.best)["step"] == self.state.global_step:
            with self._saving(BEST) as folder:
                self.save_model(str(folder))
                if self.record.writes:
                    # Should the process die while there is neither the old nor the new one, the
                    # resumed training gets here again: the checkpoint of this step comes later.
                    settle(folder, self.record.folder / BEST)
        return metrics

    def test_best(self, examples: Examples) -> dict[str, float]:
        """`test_loss` and the other metrics of the best model, on examples that chose nothing."""
        # A new model: one that is sharded cannot take whole weights.
        best = self._kind.from_pretrained(self.record.folder / BEST)
        self.model = self.model_wrapped = best.to(self.args.device)
        metrics = self.predict(examples, metric_key_prefix="test").metrics
        return {
            key: value
            for key, value in metrics.items()
            if key.startswith("test_") and key.removeprefix("test_") not in TIMES
        }

    def _get_output_dir(self, trial: Any) -> str:
        """Where the Trainer puts a checkpoint, and removes old ones."""
        return str(self._staging or self.record.folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        name = f"checkpoint-{self.state.global_step}"
        with self._saving(name) as folder:
            self._staging = folder.parent
            super()._save_checkpoint(model, trial)
            self._staging = None
            self.accelerator.wait_for_everyone()
            if self.record.writes:
                publish(folder, self.record.folder, keep=self.keep)
        self.accelerator.wait_for_everyone()

    @contextmanager
    def _saving(self, name: str) -> Iterator[Path]:
        """A folder to write to; errors say in one line what could not be written."""
        folder = self.record.folder / STAGING / name
        if self.record.writes and folder.exists():  # what an interrupted call left
            shutil.rmtree(folder)
        self.accelerator.wait_for_everyone()
        try:
            yield folder
        except (OSError, SafetensorError, RuntimeError) as error:
            if self.record.writes:
                shutil.rmtree(folder, ignore_errors=True)
            # torch says nothing of the reason: the free space does, if that is it.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            free = shutil.disk_usage(self.record.folder).free / 1e6
            raise NotSaved(
                f"cannot write {name} to {self.record.folder}, where {free:,.0f} MB are free: "
                f"{' '.join(str(reason).split())}; what was saved before is whole, and the same "
                "command goes on from there"
            ) from error
