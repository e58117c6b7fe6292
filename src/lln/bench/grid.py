"""Tables that are shown on a terminal and kept as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Grid:
    """A table of text.

    Attributes:
        title: above it.
        columns: their titles; a line break is one on a terminal only.
        rows: as many texts as there are columns.
        named: how many columns from the left are names; the others hold numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    named: int = 1

    def rich(self) -> "Table":
        """For a terminal."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), title=escape(self.title))
        for place, column in enumerate(self.columns):
            named = place < self.named
            table.add_column(
                escape(column),
                justify="left" if named else "right",
                style="bold" if place == 0 else None,
                no_wrap=place == 0,
            )
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        """For documents."""
        lines = [
            [column.replace("\n", " ") for column in self.columns],
            ["---" if place < self.named else "---:" for place in range(len(self.columns))],
            *self.rows,
        ]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.title}\n\n{table}\n"


def document(title: str, origin: str, grids: Iterable[Grid]) -> str:
    """The tables of a report as one Markdown document."""
    parts = [f"# {title}\n", f"{origin}\n", *(grid.markdown() for grid in grids)]
    return "\n".join(parts)
