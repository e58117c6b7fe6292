"""`lln report`: training runs side by side, as a table and as a page to explore."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lln.bench.record import environment
from lln.cli.console import Refusal, progress, writing
from lln.files import write
from lln.report import build_run_page, find_runs, read_run
from lln.report.results import Group, final_keys, group_runs, quantity

EPILOG = (
    "Examples:  lln report runs/wikitext2-cpu  ·  "
    "lln report runs/a/softmax-seed0 runs/a/lln_diag-seed0 --out compared.html"
)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or of experiments with runs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML page to write; [bold]report.html[/bold] in RUN, for several RUNs here.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show training runs side by side: a table, and a page with all curves."""
    if importlib.util.find_spec("plotly") is None:
        raise Refusal("lln report needs plotly: pip install 'lln[report]'")
    try:
        found = find_runs(folders)
        runs = []
        with progress("reading", len(found)) as advance:
            for folder in found:
                runs.append(read_run(folder))
                advance()
    except ValueError as error:
        raise Refusal(str(error)) from error
    groups = group_runs(runs)
    Console().print(_table(groups))
    for group in groups:
        for run in group.runs:
            for note in run.notes:
                typer.echo(f"note: {group.run_title(run)}: {note}", err=True)
    made = environment()
    page = build_run_page(runs, footer=f"lln {made['lln']}, {made['date']}")
    file = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    with writing(file):
        write(file, lambda unfinished: unfinished.write_text(page, encoding="utf-8"))


def _table(groups: list[Group]) -> Table:
    """A line for each mixer, with what mixers are compared by."""
    keys = [key for key in final_keys(groups) if quantity(key).best]
    table = Table(
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        caption="mean ± standard deviation over seeds" if _several(groups) else None,
    )
    table.add_column("mixer", style="bold", overflow="fold")
    table.add_column("seeds", justify="right")
    for key in keys:
        table.add_column(quantity(key).title.replace(" ", "\n"), justify="right")
    for group in groups:
        numbers = [quantity(key).show(group.values(key)) for key in keys]
        table.add_row(escape(group.title), group.seeds, *numbers)
    return table


def _several(groups: list[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)
