"""The figure of `lln bench op`: time and peak memory over the sequence length."""

from pathlib import Path
from typing import Any

from lln.bench.curves import Panel
from lln.bench.curves import draw as draw_curves


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws `report` of `lln.bench.op.run`, its most complete pass, into `path`."""
    setting, exponents = report["setting"], report["exponents"]
    title = [title for title in setting["passes"] if title != "decoding"][-1]
    quantities = {title: f"Time, {title} (ms)"}
    if setting["memory"]:
        quantities["memory"] = "Peak memory beyond the inputs (MiB)"
    panels = [
        Panel(
            text,
            {name: _points(report, name, quantity) for name in exponents},
            {name: powers[quantity] for name, powers in exponents.items()},
        )
        for quantity, text in quantities.items()
    ]
    caption = (
        f"B={setting['batch']}, H={setting['heads']}, D={setting['head_dim']}, "
        f"{setting['dtype']}, {setting['threads']} threads of "
        f"{report['machine']['processor']}, torch {report['torch']}"
    )
    draw_curves(panels, caption, path)


def _points(report: dict[str, Any], name: str, quantity: str) -> list[tuple[int, float]]:
    rows = [row for row in report["results"] if row["case"] == name]
    if quantity != "memory":
        return [(row["n"], 1e3 * row[quantity]["median"]) for row in rows if quantity in row]
    peaks = [(row["n"], row.get("peak", {}).get("bytes")) for row in rows]
    return [(n, peak / 2**20) for n, peak in peaks if peak]
