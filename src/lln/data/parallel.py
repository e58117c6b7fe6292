"""Work on many items in several processes, with a progress bar."""

import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from typing import TypeVar

from lln.data.progress import tracked

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    what: str,
    *,
    total: int,
    least: int,
) -> Iterator[Result]:
    """The results of `function` in the order of the items, whatever the number of processes.

    Args:
        function: Can be pickled.
        items: Taken as they are needed, not all at once.
        what: Says on the progress bar what is done.
        total: How many items there are.
        least: Items that are worth the start of a process.
    """
    processes = min(os.cpu_count() or 1, total // least)
    if processes < 2:
        yield from tracked(map(function, items), what, total)
        return
    # A fork of a process with threads, as torch starts them, can hang; a new process cannot.
    with get_context("spawn").Pool(processes) as pool:
        yield from tracked(pool.imap(function, items, chunksize=16), what, total)
