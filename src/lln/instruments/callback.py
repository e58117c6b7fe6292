"""A callback for the Trainer of transformers that follows the attention through training.

It measures the forward pass that a training step runs anyway. A batch of its own would need data,
devices and a second forward pass, which sharded models do not take lightly; the price is that
batches differ, so that curves scatter a little, and that dropout is on in the layers below.
"""

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from lln.files import write
from lln.instruments.probe import Probe
from lln.instruments.recording import Recording

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ImportError("MeasureCallback needs transformers: pip install 'lln[train]'") from None

PLACE = ("step", "layer", "name", "head", "n")


class MeasureCallback(TrainerCallback):  # type: ignore[misc]
    """Writes what `lln.instruments.record` measures, every so many steps of training.

    Rows go to `attention.jsonl` in the output directory, the means of layers over heads to
    TensorBoard in `runs/attention` beside it, if tensorboard is installed. A resumed training goes
    on in the same file, from the step of its checkpoint. Only the first process measures. A
    compiled model runs uncompiled in a measured step, which torch refuses with `fullgraph=True`.

    Args:
        every: steps from one measurement to the next; the first is of step 0.
        layers: as in `record`.
        rows: as in `record`.
    """

    def __init__(
        self, *, every: int = 100, layers: Iterable[int] | None = None, rows: int = 256
    ) -> None:
        self._every, self._rows = every, rows
        self._layers = None if layers is None else list(layers)
        self._board: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._path = Path(args.output_dir) / "attention.jsonl"
        text = "".join(_lines_before(self._path, state.global_step))
        write(self._path, lambda file: file.write_text(text, encoding="utf-8"))
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            folder = self._path.parent / "runs" / "attention"
            self._board = SummaryWriter(folder, purge_step=state.global_step)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and state.global_step % self._every == 0:
            self._measure_next_forward(model, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    def _measure_next_forward(self, model: nn.Module, step: int) -> None:
        probe = Probe(model, layers=self._layers, rows=self._rows)
        attached = probe.attached()
        attached.__enter__()

        def finish(module: nn.Module, args: Any, output: Any) -> None:
            hook.remove()
            attached.__exit__(None, None, None)
            self._write(probe.recording, step)

        # Even after an error in the model; and before the backward pass, which may fail as well.
        hook = model.register_forward_hook(finish, always_call=True)

    def _write(self, recording: Recording, step: int) -> None:
        for row in recording.rows:
            row["step"] = step
        with self._path.open("a", encoding="utf-8") as file:
            file.write(recording.lines())
        if self._board is None:
            return
        for layer in {row["layer"]: None for row in recording.rows}:
            heads = [row for row in recording.rows if row["layer"] == layer]
            for measure in heads[0]:
                values = [row[measure] for row in heads]
                if measure not in PLACE and None not in values:
                    mean = sum(values) / len(values)
                    self._board.add_scalar(f"{measure}/layer {layer}", mean, step)


def _lines_before(path: Path, step: int) -> list[str]:
    """What an interrupted training wrote before the checkpoint from which it goes on."""
    if step == 0 or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    return [line for line in whole if json.loads(line)["step"] < step]
