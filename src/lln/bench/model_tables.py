"""The tables and the figure of `lln bench model`, in the layout of the paper's Tables 2 and 4."""

import math
from pathlib import Path
from typing import Any

from lln.bench.curves import Panel, draw_bars
from lln.bench.curves import draw as draw_curves
from lln.bench.grid import Grid, document
from lln.bench.model import fitted_from
from lln.bench.record import origin

Report = dict[str, Any]
REFERENCE = "softmax"
# What is measured, its unit, and how many of these make one of the record's.
QUANTITIES = {"bytes": ("Memory [GB]", 1e-9), "seconds": ("Time [sec/it]", 1.0)}


def tables(report: Report) -> list[Grid]:
    """Memory and time by length or task, the same by softmax, and what was not timed."""
    setting = report["setting"]
    columns = [task["short"] for task in setting["columns"].values()]
    fitted = any(powers["seconds"] is not None for powers in report["exponents"].values())
    lengths = [task["n"] for task in setting["columns"].values()]
    power = f"power of N\nfrom {fitted_from(lengths)} on"
    titles = ["", "Method", *columns, *([power] if fitted else [])]
    absolute, relative = [], []
    for key, (quantity, unit) in QUANTITIES.items():
        for mixer, powers in report["exponents"].items():
            tail = [] if not fitted else ["–" if powers[key] is None else f"{powers[key]:.2f}"]
            cells = [_cell(report, mixer, column, key, unit) for column in setting["columns"]]
            absolute.append([quantity, mixer, *cells, *tail])
            if REFERENCE in report["exponents"]:
                ratios = [_ratio(report, mixer, column, key) for column in setting["columns"]]
                relative.append([quantity.split(" ")[0], mixer, *ratios])
    found = [Grid(_title(report), titles, absolute, named=2)]
    if relative:
        found.append(Grid(f"times {REFERENCE}", titles[: len(columns) + 2], relative, named=2))
    if report["red"]:
        rows = [[name, reason] for name, reason in report["red"].items()]
        found.append(Grid("red: not timed, and no speed-up", ["mixer", "broken clause"], rows, 2))
    return found


def markdown(report: Report) -> str:
    """What `model.md` holds."""
    return document("lln bench model", origin(report), tables(report))


def _title(report: Report) -> str:
    setting, size = report["setting"], report["setting"]["size"]
    batches = sorted({task["batch"] for task in setting["columns"].values()})
    return (
        f"training step: {size['layers']} layers, dim {size['dim']}, {size['heads']} heads, "
        f"vocabulary {size['vocabulary']}, batch {', '.join(map(str, batches))}, "
        f"{setting['dtype']}, {setting['device']}, threads={setting['threads']}"
    )


def _row(report: Report, mixer: str, column: str) -> dict[str, Any]:
    """A cell; one without figures, if the run has not come to it."""
    rows: list[dict[str, Any]] = report["results"]
    found = (row for row in rows if (row["mixer"], row["column"]) == (mixer, column))
    return next(found, {"bytes": None, "seconds": None, "problem": None})


def _cell(report: Report, mixer: str, column: str, key: str, unit: float) -> str:
    row = _row(report, mixer, column)
    if row[key] is None:
        return {"out of memory": "OOM"}.get(row["problem"], row["problem"] or "–")
    return f"{unit * row[key]:.3g}"


def _ratio(report: Report, mixer: str, column: str, key: str) -> str:
    own, softmax = (_row(report, name, column)[key] for name in (mixer, REFERENCE))
    return "–" if own is None or softmax is None else f"{own / softmax:.2f}"


def draw(report: Report, path: Path) -> None:
    """Draws `report` of `lln.bench.model.run` into `path`: curves over N, or bars of tasks."""
    tasks = {column: task["short"] for column, task in report["setting"]["columns"].items()}
    caption = f"{_title(report)}; {report['machine']['processor']}"
    quantities = list(reversed(QUANTITIES.items()))
    if any(task["classes"] for task in report["setting"]["columns"].values()):
        bars = {
            quantity: {
                mixer: [unit * (_row(report, mixer, column)[key] or math.nan) for column in tasks]
                for mixer in report["exponents"]
            }
            for key, (quantity, unit) in quantities
        }
        draw_bars(bars, list(tasks.values()), caption, path)
        return
    panels = [
        Panel(
            quantity,
            {mixer: _points(report, mixer, key, unit) for mixer in report["exponents"]},
            {mixer: powers[key] for mixer, powers in report["exponents"].items()},
        )
        for key, (quantity, unit) in quantities
    ]
    draw_curves(panels, caption, path)


def _points(report: Report, mixer: str, key: str, unit: float) -> list[tuple[int, float]]:
    rows = [row for row in report["results"] if row["mixer"] == mixer]
    return [(row["n"], unit * row[key]) for row in rows if row[key]]
