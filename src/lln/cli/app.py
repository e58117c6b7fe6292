"""The commands of `lln`. Each parses its options and leaves the work to the package."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import lln
from lln.cli import listing
from lln.cli.bench import bench
from lln.cli.console import progress, writing
from lln.cli.convert import EPILOG as CONVERT_EPILOG
from lln.cli.convert import convert
from lln.cli.demo import EPILOG as DEMO_EPILOG
from lln.cli.demo import demo
from lln.cli.figure import EPILOG as FIGURE_EPILOG
from lln.cli.figure import figure
from lln.cli.groups import OneLineErrors
from lln.cli.lra import lra
from lln.cli.measure import EPILOG as MEASURE_EPILOG
from lln.cli.measure import measure
from lln.cli.options import numbers
from lln.cli.report import EPILOG as REPORT_EPILOG
from lln.cli.report import report
from lln.cli.sweep import EPILOG as SWEEP_EPILOG
from lln.cli.sweep import sweep
from lln.cli.train import FINETUNE_EPILOG, PRETRAIN_EPILOG, VIT_EPILOG, finetune, pretrain, vit
from lln.matching.calibration import HEAD_DIMS, LENGTHS, SHIPPED, calibrate, save

app = typer.Typer(
    cls=OneLineErrors,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(bench, name="bench", help="Measure speed and memory on this machine.")
app.command("measure", epilog=MEASURE_EPILOG)(measure)
app.command("demo", epilog=DEMO_EPILOG)(demo)
app.command("convert", epilog=CONVERT_EPILOG)(convert)
app.command("figure", epilog=FIGURE_EPILOG)(figure)
app.command("pretrain", epilog=PRETRAIN_EPILOG)(pretrain)
app.command("finetune", epilog=FINETUNE_EPILOG)(finetune)
app.command("vit", epilog=VIT_EPILOG)(vit)
app.add_typer(lra, name="lra", help="Train and test encoders on the Long Range Arena.")
app.command("sweep", epilog=SWEEP_EPILOG)(sweep)
app.command("report", epilog=REPORT_EPILOG)(report)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"lln {lln.__version__}")
        raise typer.Exit()


@app.callback(epilog="Examples:  lln list  ·  lln demo  ·  lln bench op --n 2048,8192 --threads 4")
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Attention that behaves like softmax attention and costs O(N)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Examples:  lln list  ·  lln list --json | jq '.[].name'")
def list_mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For the README.")] = False,
) -> None:
    """List the attention mechanisms that lln.build knows."""
    if as_json:
        typer.echo(json.dumps(listing.mechanisms(), indent=2, ensure_ascii=False))
    elif as_markdown:
        typer.echo(listing.markdown())
    else:
        Console().print(listing.table())


@app.command("calibrate", epilog="Example:  lln calibrate --dims 40,48 --out calibration.json")
def run_calibrate(
    dims: Annotated[list[str] | None, typer.Option(help="Head dimensions; all that ship.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Sets of keys per measurement.")] = 64,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)] = SHIPPED,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
) -> None:
    """Measure anew how α and β follow from the moments of q and k; takes a while."""
    chosen = numbers("--dims", dims) if dims else HEAD_DIMS
    with progress("calibrating", len(chosen) * len(LENGTHS)) as advance:
        result = [calibrate(d, LENGTHS, draws=draws, seed=seed, advance=advance) for d in chosen]
    with writing(out):
        save(result, out)
