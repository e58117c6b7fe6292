"""`lln pretrain` and `lln finetune`: every mixer and seed of an experiment, one after another."""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lln.cli.console import Refusal, refusing, say

if TYPE_CHECKING:
    from lln.train import Finetuning, Pretraining

PRETRAIN_EPILOG = (
    "Examples:  lln pretrain experiments/pretrain-smoke.toml  ·  "
    "lln pretrain experiments/pretrain-cpu.toml mixer=softmax,lln,lln_diag+combine=learnable_ratio "
    "seed=0,1  ·  torchrun --nproc-per-node 8 -m lln.cli pretrain experiments/pretrain-paper.toml"
)
FINETUNE_EPILOG = (
    "Examples:  lln finetune experiments/finetune-smoke.toml task=qnli  ·  "
    "lln finetune experiments/finetune-cpu.toml pretrained=runs/pretrain-cpu mixer=softmax,lln_diag"
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
    _need_extra("pretrain")
    from lln.train import Pretraining

    _train(Pretraining, config, overrides or [], restart)


def finetune(
    config: Annotated[Path, CONFIG],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    restart: Annotated[bool, RESTART] = False,
) -> None:
    """Fine-tune encoders to classify sentences (task=sst2, qnli, mnli, qqp).

    pretrained=FOLDER names a run's model, or an experiment with a run for each mixer and seed;
    without it models start from scratch.
    """
    _need_extra("finetune")
    from lln.train import Finetuning

    _train(Finetuning, config, overrides or [], restart)


def _need_extra(command: str) -> None:
    for package in ("transformers", "accelerate", "datasets", "tensorboard"):
        if find_spec(package) is None:
            raise Refusal(f"lln {command} needs {package}: pip install 'lln[train]'")


def _train(
    kind: "type[Pretraining] | type[Finetuning]",
    config: Path,
    overrides: list[str],
    restart: bool,
) -> None:
    from accelerate import PartialState

    from lln.train import read
    from lln.train.summary import table
    from lln.train.sweep import run_all

    with refusing():
        experiment = read(kind, config, overrides)
        command = shlex.join(["lln", *sys.argv[1:]])
        records = run_all(experiment, command=command, restart=restart, say=say)
        if PartialState().is_main_process:
            Console().print(_table(experiment.name, *table(records)))
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
