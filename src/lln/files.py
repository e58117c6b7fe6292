"""Files and folders that are written whole or not at all."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_json(path: Path, content: object) -> None:
    """Writes `path` whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write(path, lambda file: file.write_text(text, encoding="utf-8"))


def write(path: Path, save: Callable[[Path], object]) -> None:
    """Lets `save` write a file beside `path`, and moves it there once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        save(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Lets `fill` write files into a folder beside `path`, which gets that name once it is whole.

    Raises:
        FileExistsError: there is something at `path` already.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, "it exists already", str(path))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        fill(unfinished)
        os.replace(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Keeps `path` to this process, by a lock beside it that ends with the process at the latest.

    Raises:
        BlockingIOError: another process has it. Only systems with `fcntl` know (not Windows).
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
