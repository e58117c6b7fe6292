"""What happens beside the steps of a training: metrics, measurements, early stopping, progress."""

import math
import statistics
import time
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from torch import nn
from transformers import TrainerCallback

from lln import memory
from lln.attention import Attention
from lln.instruments.callback import MeasureCallback
from lln.instruments.recording import Recording
from lln.train.record import Record

TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
KEPT = ("layer", "name", "head", "alpha", "beta", "temperature", "entropy", "gap")


class RecordMetrics(TrainerCallback):  # type: ignore[misc]
    """Adds a line to the record whenever the Trainer logs its loss, or evaluates."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._times: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._times.append(time.perf_counter() - self._began)
        # The last step ends a run: log it, however far the last line is away.
        control.should_log |= state.global_step == state.max_steps

    def on_log(
        self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        if "loss" not in logs:
            return
        values: dict[str, Any] = {
            key: logs[key] for key in ("loss", "grad_norm", "learning_rate") if key in logs
        }
        scaler = getattr(kwargs["optimizer"], "scaler", None)
        if scaler is not None:
            values["loss_scale"] = scaler.get_scale()
        # The median does not see the steps in which the attention was measured.
        values["seconds_per_step"] = statistics.median(self._times)
        values["memory_bytes"] = memory.in_use(args.device)
        self._times.clear()
        self._record.add("train", state.global_step, **values)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, *, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        values = {key.removeprefix("eval_"): value for key, value in metrics.items()}
        step = state.global_step
        self._record.add(
            "eval", step, **{key: values[key] for key in values if key not in (*TIMES, "epoch")}
        )
        if not math.isfinite(values["loss"]):
            raise ValueError(
                f"the loss is not finite after step {step}: lower learning_rate or set clip"
            )


class RecordAttention(MeasureCallback):
    """Puts the measurements into the record, instead of files of their own."""

    def __init__(self, record: Record, *, every: int) -> None:
        super().__init__(every=every)
        self._record = record

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """There is no file to open."""

    def _write(self, recording: Recording, step: int) -> None:
        rows = [{key: row[key] for key in KEPT if key in row} for row in recording.rows]
        self._record.add("attention", step, rows=rows)


def measurable(model: nn.Module) -> bool:
    """Whether there is an attention matrix to measure in the model."""
    return any(isinstance(part, Attention) and part.linear_in_values for part in model.modules())


class StopEarly(TrainerCallback):  # type: ignore[misc]
    """Ends a training after `patience` evaluations in a row without a new best; 0 never does."""

    def __init__(self, record: Record, *, best: str, patience: int) -> None:
        self._record, self._best, self._patience = record, best, patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.reached():
            control.should_training_stop = control.should_save = True

    def reached(self) -> bool:
        """Whether patience has run out."""
        evaluations = self._record.eval
        if not (self._patience and evaluations):
            return False
        best = evaluations.index(self._record.best(self._best))
        return len(evaluations) - 1 - best >= self._patience


class ShowProgress(TrainerCallback):  # type: ignore[misc]
    """A bar on the terminal, and nothing where output is not one."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._title = title
        self._evaluation = self._bar.add_task("evaluating", visible=False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._task = self._bar.add_task(
            self._title, total=state.max_steps, completed=state.global_step
        )
        self._bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        if "loss" in logs:
            self._bar.update(self._task, description=f"{self._title}, loss {logs['loss']:.3f}")

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, *, eval_dataloader: Any, **kwargs: Any
    ) -> None:
        self._bar.update(self._evaluation, total=len(eval_dataloader), visible=True)
        self._bar.advance(self._evaluation)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.reset(self._evaluation, visible=False)

    def close(self) -> None:
        """Gives the terminal back, even after an error."""
        self._bar.stop()
