"""A progress bar on a terminal, and nothing where output is not one."""

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def tracked(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The items, with a bar that says how many of them passed."""
    console = Console(stderr=True)
    return track(
        items,
        what,
        total=total,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
