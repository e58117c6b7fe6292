"""Files that are made once from a corpus, and found again by its content."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from lln.files import write


def cached(
    name: str,
    content: Iterable[str],
    make: Callable[[Path], object],
    *,
    folder: str | Path | None,
) -> Path:
    """A file that `make` writes where the same content was not seen before.

    Processes that race write the same file twice, each whole; none reads a part of one.

    Args:
        name: Of the file; the key goes before its suffix.
        content: Everything that the file depends on.
        make: Writes the file to a path.
        folder: Where to keep it; `$XDG_CACHE_HOME/lln`, or `~/.cache/lln`, for None.
    """
    key = hashlib.sha256()
    for part in content:
        key.update(part.encode() + b"\n")
    plain = Path(name)
    path = _folder(folder) / f"{plain.stem}-{key.hexdigest()[:32]}{plain.suffix}"
    if not path.exists():
        write(path, make)
    return path


def _folder(given: str | Path | None) -> Path:
    if given is not None:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lln"
