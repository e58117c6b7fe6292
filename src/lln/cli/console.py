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
def writing(path: Path, *, announced: bool = True) -> Iterator[None]:
    """Says that `path` was written (if `announced`), or why not."""
    try:
        yield
    except OSError as error:
        raise Refusal(f"cannot write '--out' {path}: {error.strerror}") from None
    if announced:
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


def say(text: str) -> None:
    """Tells the user what happens, beside the result."""
    typer.echo(text, err=True)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns what is wrong with the input or the disk into one line, and warnings into another."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    told: set[str] = set()

    def tell(message: Warning | str, *where: object, **more: object) -> None:
        if str(message) not in told:
            told.add(str(message))
            say(f"warning: {message}")

    with warnings.catch_warnings():
        # Only what a user can do something about: libraries warn each other of the future.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = tell
        try:
            yield
        except ValueError as error:
            raise Refusal(str(error)) from error
        except OSError as error:
            raise Refusal(_reason(error)) from error


def _reason(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.filename or 'cannot write'}: {error.strerror}"
