"""What commands tell the user: refusals, progress, and what was written."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn


class Refusal(Exception):
    """What the user has to know instead of a result, in one line."""

    def format_message(self) -> str:
        """Called like the method of typer's own errors."""
        return str(self)


def need_matplotlib(what: str) -> None:
    """Refuses early what could not be drawn in the end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Refusal(f"{what} needs matplotlib: pip install 'lln[bench]'")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says that `path` was written, or why not."""
    try:
        yield
    except OSError as error:
        raise Refusal(f"cannot write '--out' {path}: {error.strerror}") from None
    typer.echo(f"wrote {path}")


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar on the terminal, and nothing where output is not one."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns what is wrong with the input into one line, and warnings about it too."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always", UserWarning)
            yield
    except ValueError as error:
        raise Refusal(str(error)) from error
    for message in dict.fromkeys(str(note.message) for note in noted):
        typer.echo(f"note: {message}", err=True)
