"""`lln figure`: the figures of the paper's theory, measured and drawn."""

from pathlib import Path
from typing import Annotated

import typer

from lln.bench import theory
from lln.cli.console import need_matplotlib, progress, writing
from lln.cli.options import choices

EPILOG = (
    "Examples:  lln figure 5a  ·  lln figure 2 7 --out /tmp/figures --seed 1  ·  lln figure all"
)


def figure(
    names: Annotated[
        list[str], typer.Argument(help=f"{', '.join(theory.FIGURES)}, or all.", metavar="NAME...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for JSON, PNG and SVG.")] = Path(
        "results/figures"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
) -> None:
    """Measure and draw the figures of the paper's theory anew (all: two to five minutes)."""
    need_matplotlib("a figure")
    chosen = choices("NAME", names, [*theory.FIGURES, "all"])
    if "all" in chosen:
        chosen = tuple(theory.FIGURES)
    for name in chosen:
        with progress(f"figure {name}", theory.FIGURES[name].setting.steps) as advance:
            report = theory.run(name, seed=seed, advance=advance)
        typer.echo(f"Figure {name}: {report['title']}")
        for finding in report["summary"]:
            typer.echo(f"  {finding}")
        with writing(out / f"figure-{name}.json"):
            theory.save(report, out)
