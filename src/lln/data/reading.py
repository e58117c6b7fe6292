"""Files of lines and tables, plain or compressed, and one line on what is wrong with them."""

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from rich.console import Console
from rich.progress import wrap_file

UNPACK: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = ("", *UNPACK)
ROWS_AT_ONCE = 10_000


def format_of(path: Path) -> str:
    """The suffix that says what a file holds, without that of its compression."""
    return Path(path.stem).suffix if path.suffix in UNPACK else path.suffix


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends; refuses a file without text."""
    empty = True
    with _naming(path), _open(path) as file:
        # Bytes end a line at a line feed alone; texts may hold what else str.splitlines knows.
        for line in file:
            text = line.decode("utf-8").rstrip("\r\n")
            empty = empty and not text.strip()
            yield text
    if empty:
        raise ValueError(f"{path} is empty: expected UTF-8 text")


def read_texts(path: Path) -> Dataset:
    """A data set with the column `text`: a row for each line, JSON object or Parquet row."""
    kind = format_of(path)
    if kind == ".parquet":
        table = read_parquet(path, ["text"])
        if table.schema.field("text").type not in (pa.string(), pa.large_string()):
            raise ValueError(f"{path}: the column 'text' does not hold text")
        return Dataset(table)
    rows = _json_texts(path) if kind == ".jsonl" else read_lines(path)
    # Chunks keep memory at the size of the text, and below the 2 GB that one Arrow array may hold.
    chunks = [pa.array(chunk, pa.string()) for chunk in batches(rows, ROWS_AT_ONCE)]
    return Dataset(pa.table({"text": pa.chunked_array(chunks, pa.string())}))


def read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A Parquet file as a table; refuses one without rows or without the columns."""
    with _naming(path):
        file = pq.ParquetFile(path)
        missing = [name for name in columns or [] if name not in file.schema_arrow.names]
        if missing:
            raise ValueError(
                f"{path} has no column {missing[0]!r}: it has {', '.join(file.schema_arrow.names)}"
            )
        table = file.read(columns)
    if table.num_rows == 0:
        raise ValueError(f"{path} is empty: expected rows")
    return table


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items each, the last one shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _json_texts(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ValueError(
                f'{path} line {number}: expected a JSON object such as {{"text": "…"}}'
            )
        yield text


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked file, with a progress bar on a terminal."""
    console = Console(stderr=True)
    unpack = UNPACK.get(path.suffix)
    with (
        path.open("rb") as stored,
        wrap_file(
            stored,
            total=path.stat().st_size,
            description=f"reading {path.name}",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as watched,
        unpack(watched) if unpack else watched as file,
    ):
        yield file


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says in one line which file cannot be read, and why."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, pa.ArrowInvalid) as error:
        kind = path.suffix.removeprefix(".")
        raise ValueError(
            f"{path} is damaged or no {kind} file ({' '.join(str(error).split())}): get it again"
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
