"""`lln pretrain`, `finetune` and `vit`: every mixer and seed of an experiment, one by one."""

import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lln.cli.console import Refusal, refusing, say

if TYPE_CHECKING:
    from lln.train.config import AnyExperiment

PRETRAIN_EPILOG = (
    "Examples:  lln pretrain experiments/pretrain-smoke.toml  ·  "
    "lln pretrain experiments/pretrain-cpu.toml mixer=softmax,lln,lln_diag+combine=learnable_ratio "
    "seed=0,1  ·  torchrun --nproc-per-node 8 -m lln.cli pretrain experiments/pretrain-paper.toml"
)
FINETUNE_EPILOG = (
    "Examples:  lln finetune experiments/finetune-smoke.toml task=qnli  ·  "
    "lln finetune experiments/finetune-cpu.toml pretrained=runs/pretrain-cpu mixer=softmax,lln_diag"
)
VIT_EPILOG = (
    "Examples:  lln vit experiments/vit-smoke.toml  ·  "
    "lln vit experiments/vit-cpu.toml mixer=softmax,lln_diag seed=0,1  ·  "
    "lln vit experiments/vit-cpu.toml dataset=photos.zip size=64 name=photos  ·  "
    "lln vit experiments/vit-cpu.toml mixer=lln_diag,lln_diag+matching=1,lln_diag+matching=2"
)
CONFIG = typer.Argument(
    help="TOML file; the folder experiments has presets smoke, cpu and paper.", show_default=False
)
OVERRIDES = typer.Argument(
    help="Values instead of the file's: training.steps=100, or steps=100 where that is clear. "
    "mixer and seed take lists with commas, a mixer options after a plus.",
    metavar="[KEY=VALUE]...",
    show_default=False,
)
RESTART = typer.Option("--restart", help="Throw away what earlier calls left of these runs.")


def pretrain(
    config: Annotated[Path, CONFIG],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    restart: Annotated[bool, RESTART] = False,
) -> None:
    """Pre-train encoders on text by masked language modelling, one for each mixer and seed.

    Runs go to runs/NAME/MIXER-seedN. The same command goes on where it was interrupted, and does
    nothing for what is finished.
    """
    need_extra("pretrain")
    from lln.train import Pretraining, read

    train(lambda: read(Pretraining, config, overrides or []), restart)


def finetune(
    config: Annotated[Path, CONFIG],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    restart: Annotated[bool, RESTART] = False,
) -> None:
    """Fine-tune encoders to classify sentences (task=sst2, qnli, mnli, qqp).

    pretrained=FOLDER names a run's model, or an experiment with a run for each mixer and seed;
    without it models start from scratch.
    """
    need_extra("finetune")
    from lln.train import Finetuning, read

    train(lambda: read(Finetuning, config, overrides or []), restart)


def vit(
    config: Annotated[Path, CONFIG],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    restart: Annotated[bool, RESTART] = False,
) -> None:
    """Train encoders to classify images, and test the best model of each mixer and seed.

    dataset names Dogs vs Cats, or a folder or zip with a folder for each class. Mixers such as
    lln_diag+matching=2 hold α = β fixed: [bold]lln sweep[/bold] shows what that does.
    """
    need_extra("vit")
    from lln.train import Vision, read

    train(lambda: read(Vision, config, overrides or []), restart)


def need_extra(command: str) -> None:
    """Refuses what could not be imported."""
    for package in ("transformers", "accelerate", "datasets", "tensorboard"):
        if find_spec(package) is None:
            raise Refusal(f"lln {command} needs {package}: pip install 'lln[train]'")


def train(read: "Callable[[], AnyExperiment]", restart: bool) -> None:
    """Trains what `read` finds, and prints what came out."""
    from accelerate import PartialState

    from lln.train.summary import table
    from lln.train.sweep import run_all

    with refusing():
        experiment = read()
        command = shlex.join(["lln", *sys.argv[1:]])
        records = run_all(experiment, command=command, restart=restart, say=say)
        if PartialState().is_main_process:
            Console().print(_table(experiment.title, *table(records)))
            typer.echo(f"wrote {experiment.folder}")
        PartialState().destroy_process_group()


def _table(title: str, titles: list[str], rows: list[list[str]]) -> Table:
    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), title=title)
    table.add_column(titles[0], overflow="fold")
    for name in titles[1:]:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
