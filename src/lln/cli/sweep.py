"""`lln sweep`: what a fixed α = β does to the accuracy, beside moment matching."""

from pathlib import Path
from typing import Annotated

import typer

from lln.cli.console import Refusal, need_matplotlib, writing
from lln.report import find_runs, read_run
from lln.report.sweep import save
from lln.report.sweep import sweep as compare

EPILOG = (
    "Example:  lln vit experiments/vit-cpu.toml name=fixed "
    "mixer=lln_diag,lln_diag+matching=1,lln_diag+matching=2,lln_diag+matching=4  ·  "
    "lln sweep runs/fixed --out results/fixed"
)


def sweep(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or of an experiment with runs."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for sweep.json and sweep.png.")] = Path("sweep"),
) -> None:
    """Draw accuracy against fixed α = β, as the paper's Figure 10a.

    Lines mark the α and β that moment matching found in training, bands where they have been.
    """
    need_matplotlib("the picture")
    try:
        report = compare([read_run(folder) for folder in find_runs(folders)])
    except ValueError as error:
        raise Refusal(str(error)) from error
    with writing(out):
        save(report, out)
