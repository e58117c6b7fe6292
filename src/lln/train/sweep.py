"""All runs of an experiment, one after another, and what they came to."""

from collections.abc import Callable
from typing import Any

from accelerate import PartialState

from lln.train import arena, finetuning, pretraining, vision
from lln.train.config import AnyExperiment, Arena, Finetuning, Pretraining, Vision
from lln.train.reading import runs
from lln.train.session import train
from lln.train.summary import summarise

PREPARE = {
    "pretrain": pretraining.prepare,
    "finetune": finetuning.prepare,
    "vit": vision.prepare,
    "lra": arena.prepare,
}


def pretrain(
    experiment: Pretraining, *, command: str = "lln.train.pretrain", restart: bool = False
) -> list[dict[str, Any]]:
    """Pre-trains a model for each mixer and seed; arguments as in `run_all`."""
    return run_all(experiment, command=command, restart=restart)


def finetune(
    experiment: Finetuning, *, command: str = "lln.train.finetune", restart: bool = False
) -> list[dict[str, Any]]:
    """Fine-tunes a model for each mixer and seed; arguments as in `run_all`."""
    return run_all(experiment, command=command, restart=restart)


def train_vit(
    experiment: Vision, *, command: str = "lln.train.train_vit", restart: bool = False
) -> list[dict[str, Any]]:
    """Trains an image classifier for each mixer and seed; arguments as in `run_all`."""
    return run_all(experiment, command=command, restart=restart)


def train_lra(
    experiment: Arena, *, command: str = "lln.train.train_lra", restart: bool = False
) -> list[dict[str, Any]]:
    """Trains a model of a task for each mixer and seed; arguments as in `run_all`."""
    return run_all(experiment, command=command, restart=restart)


def run_all(
    experiment: AnyExperiment,
    *,
    command: str,
    restart: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> list[dict[str, Any]]:
    """Trains what is not trained yet, and returns what every `run.json` holds.

    Args:
        experiment: mixers and seeds to train.
        command: that the user gave, for the record.
        restart: throw away what earlier calls left of these runs.
        say: told what happens to each run.
    """
    records = []
    prepare = PREPARE[experiment.kind]
    for run in runs(experiment):
        records.append(train(run, prepare, command=command, restart=restart, say=say))
        if PartialState().is_main_process:
            summarise(experiment.folder)
    return records
