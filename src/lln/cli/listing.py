"""What `lln list` shows of the registered mechanisms."""

from typing import Any

import torch
from rich import box
from rich.markup import escape
from rich.table import Table

import lln
from lln.registry import Entry, entry

# The sizes at which learned parameters are counted.
DIM, HEADS, LENGTH = 512, 8, 512
COUNTED_AT = f"learned parameters at dim {DIM}, {HEADS} heads, {LENGTH} tokens"


def mechanisms() -> list[dict[str, Any]]:
    """One row for each, as `lln list --json` prints it."""
    return [_describe(entry(name)) for name in lln.available()]


def _describe(found: Entry) -> dict[str, Any]:
    return {
        "name": found.name,
        "kind": found.kind,
        "paper": found.paper,
        "complexity": found.complexity,
        "causal": found.causal,
        "row_stochastic": found.row_stochastic,
        "options": found.options,
        "parameters": _count_parameters(found),
        "summary": found.summary,
    }


def _count_parameters(found: Entry) -> int:
    """What the mechanism itself learns: of a core, without the projections around it."""
    with torch.device("meta"):  # sizes alone, no memory
        if found.kind == "core":
            module = lln.build_core(found.name, heads=HEADS, head_dim=DIM // HEADS, max_len=LENGTH)
        else:
            module = lln.build(found.name, dim=DIM, heads=HEADS, max_len=LENGTH)
    return sum(parameter.numel() for parameter in module.parameters())


def markdown() -> str:
    """The table of the README."""
    titles = ("name", "mechanism", "paper", "kind", "cost", "causal", "averages", "parameters")
    lines = [titles, ("---",) * len(titles)]
    for row in mechanisms():
        lines.append(
            (
                f"`{row['name']}`",
                row["summary"],
                row["paper"],
                row["kind"],
                row["complexity"],
                _yes(row["causal"]),
                _yes(row["row_stochastic"]),
                f"{row['parameters']:,}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table() -> Table:
    """The table of the terminal."""
    result = Table(
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        caption=f"row-stochastic: weights ≥ 0 that sum to 1 · parameters: {COUNTED_AT}",
    )
    result.add_column("name", style="bold", no_wrap=True)
    result.add_column("mechanism", min_width=24)
    for title in ("kind", "cost", "causal", "row-\nstoch."):
        result.add_column(title)
    result.add_column("param-\neters", justify="right")
    for row in mechanisms():
        options = f"\noptions: {', '.join(row['options'])}" if row["options"] else ""
        result.add_row(
            row["name"],
            f"{escape(row['summary'])}\n[dim]{escape(row['paper'] + options)}[/dim]",
            row["kind"],
            row["complexity"],
            _yes(row["causal"]),
            _yes(row["row_stochastic"]),
            f"{row['parameters']:,}",
        )
    return result


def _yes(value: bool) -> str:
    return "yes" if value else "no"
