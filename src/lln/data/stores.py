"""Files in a folder or in a zip, read without unpacking: nothing is written outside the cache."""

import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from lln.data.progress import tracked

LARGEST_FILE = 2**26  # bytes; a larger file in an archive of images is a mistake or a bomb
HIDDEN = re.compile(r"(^|/)(\.|__MACOSX/)")


class Store(Protocol):
    """Files by name."""

    def names(self) -> list[str]:
        """Paths below the store, in the order in which to read them."""

    def read(self, name: str) -> bytes:
        """The content of a file."""

    def fingerprints(self, names: list[str]) -> Iterator[str]:
        """What identifies the content of files, the same for a folder and for a zip of it."""


class Folder:
    """The files below a folder.

    Args:
        path: Of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        paths = (path for path in self.path.rglob("*") if path.is_file())
        names = (path.relative_to(self.path).as_posix() for path in paths)
        return sorted(name for name in names if not HIDDEN.search(name))

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ValueError(f"{self.path / name} cannot be read: {error.strerror}") from error

    def fingerprints(self, names: list[str]) -> Iterator[str]:
        for name in tracked(names, f"checking {self.path.name}", total=len(names)):
            yield f"{name} {zlib.crc32(self.read(name))}"


class Zip:
    """The files of a zip; refuses one with paths that lead out of it or with huge files.

    Args:
        path: For messages.
        file: The zip itself.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        try:
            self.archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise ValueError(f"{path} is damaged or no zip file ({error}): get it again") from error
        self.files = {
            info.filename: info
            # The order of the bytes: a zip within a zip is read from the start for a step back.
            for info in sorted(self.archive.infolist(), key=lambda info: info.header_offset)
            if not info.is_dir()
        }
        for name, info in self.files.items():
            if _leads_out(name) or stat.S_ISLNK(info.external_attr >> 16):
                raise ValueError(f"{path} is refused: its file {name!r} leads out of the archive")

    def names(self) -> list[str]:
        return [name for name in self.files if not HIDDEN.search(name)]

    def read(self, name: str) -> bytes:
        if (size := self.files[name].file_size) > LARGEST_FILE:
            raise ValueError(
                f"{self.path} is refused: its file {name!r} has {size:,} bytes unpacked, more than "
                f"the {LARGEST_FILE:,} that an image may have"
            )
        try:
            return self.archive.read(name)  # never more than the size that was checked
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            RuntimeError,
            NotImplementedError,
        ) as error:
            raise ValueError(
                f"{self.path} is damaged at {name!r} ({error}): get it again"
            ) from error

    def fingerprints(self, names: list[str]) -> Iterator[str]:
        return (f"{name} {self.files[name].CRC}" for name in names)


@contextmanager
def open_store(path: Path, within: str | None = None) -> Iterator[Store]:
    """Opens a folder or a zip.

    Args:
        path: Of the folder or the zip.
        within: Name of a zip inside, to be opened instead of the zip where there is one.
    """
    if path.is_dir():
        yield Folder(path)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        store = Zip(path, file)
        if within not in store.files:
            yield store
            return
        with store.archive.open(within) as inner:
            yield Zip(path / within, inner)


def _leads_out(name: str) -> bool:
    parts = PurePosixPath(name.replace("\\", "/"))
    return parts.is_absolute() or ".." in parts.parts or bool(re.match(r"[A-Za-z]:", name))
