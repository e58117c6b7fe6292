"""A conversion on disk, while it is unfinished: one file, written whole or not at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lln.files import write


@dataclass(frozen=True)
class Saved:
    """Where a conversion stands.

    Attributes:
        task: what is converted, and how: only the same task may go on with it.
        stages: what was measured after those that are done.
        step: of the next stage, so many are done.
        seconds: and they took so long.
        tensors: of the model and of its training.
    """

    task: dict[str, Any]
    stages: list[dict[str, Any]]
    step: int
    seconds: float
    tensors: dict[str, Tensor]

    def write(self, path: Path) -> None:
        """Replaces what was saved before."""
        facts = {name: getattr(self, name) for name in ("task", "stages", "step", "seconds")}
        tensors = {name: x.detach().cpu().contiguous() for name, x in self.tensors.items()}
        metadata = {"conversion": json.dumps(facts)}
        write(path, lambda file: save_file(tensors, file, metadata=metadata))


def read(path: Path, task: dict[str, Any]) -> Saved | None:
    """What was saved for the same task; None if there is nothing.

    Raises:
        ValueError: the file belongs to another task, or is damaged.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["conversion"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"cannot go on from {path} ({reason}): delete it to start anew") from None
    differing = [name for name in task if facts["task"].get(name) != task[name]]
    if differing:
        raise ValueError(
            f"{path} holds an unfinished conversion with other {', '.join(differing)}: "
            "delete it to start anew, or write elsewhere"
        )
    return Saved(**facts, tensors=tensors)
