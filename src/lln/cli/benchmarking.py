"""What the commands of `lln bench` share."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lln.bench.record import load
from lln.cli.console import Refusal, progress, writing

Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Gate = Annotated[
    bool,
    typer.Option(
        help="First check what every mechanism must do (values, gradients, masks, causality), and "
        "do not time what fails."
    ),
]


def measure(run: Any, setting: Any, tables: Any, save: Any, out: Path | None) -> None:
    """Runs a benchmark that has a gate, and fails if that found anything."""
    note_a_busy_machine()
    with progress("measuring", setting.steps) as advance:
        report = run(setting, advance=advance)
    Console().print(*(grid.rich() for grid in tables(report)), sep="\n")
    if out is not None:
        with writing(out):
            save(report, out)
    if report["red"]:
        raise Refusal(f"not timed, as the contract is broken: {', '.join(report['red'])}")


def note_a_busy_machine() -> None:
    """Says so if others use the machine, too."""
    cores, others = os.cpu_count() or 1, load() or 0.0
    if others > cores / 2:
        typer.echo(
            f"note: this machine is busy (load {others:.1f} on {cores} cores), which slows threads "
            "that wait for each other; OMP_WAIT_POLICY=PASSIVE in the environment makes it less so",
            err=True,
        )
