"""`lln lra`: the tasks of the Long Range Arena, and tables of what came out."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lln.cli.console import Refusal, progress, writing
from lln.cli.groups import OneLineErrors
from lln.cli.train import CONFIG, OVERRIDES, RESTART, need_extra, train
from lln.files import write
from lln.report import find_runs, read_run
from lln.report.arena import ArenaTable, arena_tables, as_markdown

TASKS = {
    "listops": "Find the value of nested lists of digits.",
    "text": "Tell positive film reviews from negative ones, byte by byte.",
    "retrieval": "Tell whether a paper cites another, byte by byte.",
    "image": "Tell ten kinds of objects apart in small grey images, pixel by pixel.",
    "pathfinder": "Tell whether two points are ends of one dashed path, pixel by pixel.",
    "pathx": "The same in 128 × 128 pixels.",
}

lra = typer.Typer(cls=OneLineErrors, invoke_without_command=True, rich_markup_mode="rich")


@lra.callback(
    epilog="Examples:  lln lra listops experiments/lra-smoke.toml  ·  "
    "lln lra text experiments/lra-cpu.toml mixer=softmax,lln_diag seed=0,1  ·  "
    "lln lra table runs/lra-cpu --out lra.md"
)
def start(context: typer.Context) -> None:
    """Train and test encoders on the tasks of the Long Range Arena."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _command(task: str) -> Callable[..., None]:
    def run(
        config: Annotated[Path, CONFIG],
        overrides: Annotated[list[str] | None, OVERRIDES] = None,
        restart: Annotated[bool, RESTART] = False,
    ) -> None:
        need_extra(f"lra {task}")
        from lln.train import read_arena

        train(lambda: read_arena(task, config, overrides or []), restart)

    run.__doc__ = f"{TASKS[task]}\n\nRuns go to runs/NAME/{task}/MIXER-seedN."
    return run


for _task in TASKS:
    lra.command(
        _task,
        epilog=f"Example:  lln lra {_task} experiments/lra-smoke.toml mixer=softmax,lln_diag",
    )(_command(_task))


@lra.command("table", epilog="Example:  lln lra table runs/lra-cpu --out lra.md")
def table(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, or of experiments with runs."),
    ],
    out: Annotated[Path | None, typer.Option(help="Markdown file to write.")] = None,
) -> None:
    """Show scores, times and memory of all tasks side by side, as the paper's Tables 4 and 5.

    Means ± standard deviations over seeds. Runs of other commands are left out.
    """
    try:
        found = find_runs(folders)
        with progress("reading", len(found)) as advance:
            runs = []
            for folder in found:
                runs.append(read_run(folder))
                advance()
        tables = arena_tables(runs)
    except ValueError as error:
        raise Refusal(str(error)) from error
    for each in tables:
        Console().print(_shown(each))
    if out is not None:
        with writing(out):
            text = as_markdown(tables)
            write(out, lambda file: file.write_text(text, encoding="utf-8"))


def _shown(content: ArenaTable) -> Table:
    shown = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), title=content.title)
    shown.add_column(content.columns[0], style="bold", overflow="fold")
    for column in content.columns[1:]:
        shown.add_column(column, justify="right", overflow="fold")
    for row in content.rows:
        shown.add_row(*map(escape, row))
    return shown
