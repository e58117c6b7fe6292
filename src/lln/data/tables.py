"""Tab-separated files without quoting: a quotation mark is a character like others."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from lln.data.reading import read_lines


def read_rows(
    path: Path, columns: Sequence[str] = (), *, leave_out_broken: bool = False
) -> Iterator[tuple[str, dict[str, str]]]:
    """The place of each row, for messages, and its cells by the names of their columns.

    Args:
        path: Of the file.
        columns: Their names, for a file without a header line.
        leave_out_broken: Whether to warn of rows with another number of cells, not to refuse them.
    """
    header = list(columns)
    broken: list[int] = []
    rows = 0
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if not header:
            header = cells
            continue
        rows += 1
        if len(cells) == len(header):
            yield f"line {number}", dict(zip(header, cells, strict=True))
        elif leave_out_broken:
            broken.append(number)
        else:
            raise ValueError(
                f"{path} line {number} has {len(cells)} columns instead of {len(header)}"
            )
    if rows == len(broken):
        expected = "rows" if columns else "a header line, then a row a line"
        raise ValueError(f"{path} has no rows: expected {expected}")
    if broken:
        warnings.warn(
            f"{path}: {len(broken)} of {rows} rows have not {len(header)} columns and "
            f"were left out, the first one in line {broken[0]}",
            stacklevel=2,
        )
