"""`lln demo`: pre-train a small encoder twice, and look at what came out."""

import importlib.util
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lln.bench.record import environment
from lln.cli.console import Refusal, refusing, say, writing
from lln.files import write
from lln.report.curves import ALL

if TYPE_CHECKING:
    from lln.report import Run

EPILOG = "Examples:  lln demo  ·  lln demo --out /tmp/runs  ·  lln demo --restart"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the folder demo.")] = Path("runs"),
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what earlier calls left.")
    ] = False,
) -> None:
    """Pre-train a small RoBERTa with softmax and with LLN+Diag, and compare them (five minutes).

    Both read Moby-Dick, byte by byte, and learn to fill in what is masked. The same command goes on
    where it was interrupted.
    """
    for package in ("transformers", "accelerate", "datasets", "tensorboard", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise Refusal(f"lln demo needs {package}: pip install 'lln[train,report]'")
    from lln.report import build_run_page, read_run
    from lln.train.demo import EXPERIMENT, unigram_loss
    from lln.train.reading import runs
    from lln.train.sweep import run_all

    experiment = replace(EXPERIMENT, out=str(out))
    with refusing():
        run_all(experiment, command=shlex.join(["lln", *sys.argv[1:]]), restart=restart, say=say)
        found = [read_run(run.folder) for run in runs(experiment)]
        frequent = unigram_loss(experiment)
    Console().print(_table(found, frequent))
    made = environment()
    page = build_run_page(found, footer=f"lln {made['lln']}, {made['date']}")
    file = experiment.folder / "report.html"
    with writing(file):
        write(file, lambda unfinished: unfinished.write_text(page, encoding="utf-8"))
    model = runs(experiment)[-1].folder / "model"
    typer.echo(
        "\nLoad what was trained:\n"
        "  import lln.models\n"
        "  from transformers import AutoModelForMaskedLM\n"
        f"  model = AutoModelForMaskedLM.from_pretrained({str(model)!r})"
    )


def _table(found: "list[Run]", frequent: float) -> Table:
    """A line for each run, and one for a model that knows frequencies alone."""
    table = Table(
        box=box.HORIZONTALS,
        title="Masked bytes of Moby-Dick",
        caption="loss in nats; entropy and gap of the attention: means over layers and heads",
    )
    table.add_column("mixer", style="bold")
    for title in ("loss", "accuracy", "ms per\nstep", "peak\nMiB", "entropy\nbits", "gap"):
        table.add_column(title, justify="right")
    for run in found:
        table.add_row(
            run.label,
            f"{run.final['eval_loss']:.3f}",
            f"{run.final['accuracy']:.1%}",
            f"{1e3 * run.final['seconds_per_step']:.1f}",
            f"{run.final['peak_memory_bytes'] / 2**20:,.0f}",
            _last(run, "entropy"),
            _last(run, "gap"),
        )
    table.add_section()
    table.add_row("frequencies alone", f"{frequent:.3f}", *5 * ["–"])
    return table


def _last(run: "Run", measure: str) -> str:
    """The last measurement."""
    layers = run.attention.get(measure)
    return "–" if layers is None else f"{layers[ALL].values[-1]:.2f}"
