"""`lln measure`: what the attention of a pre-trained model does with a text or with images."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lln.bench.record import environment
from lln.cli.console import Refusal, progress, refusing, writing
from lln.files import write
from lln.report import Survey, build_survey_page, survey
from lln.report.subject import Subject, find_model, load_model, read_images, read_text
from lln.report.survey import LOG_NORMAL, TOLERANCE, Head

EPILOG = (
    "Examples:  lln measure minilm --text book.txt  ·  "
    "lln measure path/to/vit --images photos --out vit.html"
)


def measure(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder of a Hugging Face model (config.json, *.safetensors), or minilm, the "
            "encoder that the extra demo installs."
        ),
    ],
    text: Annotated[Path | None, typer.Option(help="Text file to read, in UTF-8.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of images to look at.")] = None,
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("attention.html"),
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of P to look at, of each sequence and head.")
    ] = 256,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of the text, in all.")] = 1024,
    layers: Annotated[
        list[str] | None, typer.Option(help="Layers to measure, such as 0,5; all by default.")
    ] = None,
) -> None:
    """Measure the attention of a model, head by head: a table, and a page to explore."""
    if (text is None) == (images is None):
        raise Refusal("give either '--text' or '--images'")
    for package in ("transformers", "plotly", "PIL"):
        if importlib.util.find_spec(package) is None:
            raise Refusal(f"lln measure needs {package}: pip install 'lln[report]'")
    with refusing():
        with progress("loading", 1):
            subject = _read(model, text, images, max_tokens)
        with progress("measuring", len(subject.sequences) + 1) as advance:
            result = survey(subject, layers=_layers(layers), rows=rows, advance=advance)
    Console().print(_table(result))
    made = environment()
    footer = f"lln {made['lln']}, torch {made['torch']}, {made['date']}"
    page = build_survey_page(result, footer=footer)
    with writing(out):
        write(out, lambda file: file.write_text(page, encoding="utf-8"))


def _read(name: str, text: Path | None, images: Path | None, max_tokens: int) -> Subject:
    folder = find_model(name)
    model = load_model(folder)
    title = "all-MiniLM-L6-v2" if name == "minilm" else folder.resolve().name
    if text is not None:
        return read_text(title, folder, model, text, max_tokens)
    assert images is not None
    return read_images(title, folder, model, images)


def _layers(values: list[str] | None) -> list[int] | None:
    if values is None:
        return None
    items = [item.strip() for value in values for item in value.split(",")]
    if not all(item.isdecimal() for item in items):
        raise Refusal(f"'--layers' {', '.join(values)!r} is not a list of numbers such as 0,5")
    return [int(item) for item in items]


def _table(result: Survey) -> Table:
    """A line for each layer, with the range over its heads."""
    table = Table(
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        title=escape(
            f"{result.model} on {result.source}: {result.sequences} × {result.tokens:.0f} tokens"
        ),
        caption=(
            "lowest to highest head · predicted: 1 / (σ_q σ_k), and the heads where that misses "
            f"the temperature by over {TOLERANCE - 1:.0%} · log-normal: heads whose log P is "
            f"nearer than {LOG_NORMAL} to normal"
        ),
    )
    table.add_column("layer", justify="right", style="bold")
    for title in ("temperature", "predicted", "entropy\nbits", "spectral\ngap", "log-\nnormal"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("mispredicted\nheads")
    for place, (number, _) in enumerate(result.layers):
        heads = [head for head in result.heads if head.layer == place]
        wrong = [str(head.head) for head in heads if head.mispredicted]
        table.add_row(
            str(number),
            _range(heads, "temperature"),
            _range(heads, "temperature_paper"),
            _range(heads, "entropy"),
            _range(heads, "gap"),
            f"{sum(head.log_normal for head in heads)} of {len(heads)}",
            f"[red]{' '.join(wrong)}[/red]" if wrong else "none",
        )
    return table


def _range(heads: list[Head], measure: str) -> str:
    values = [value for head in heads if (value := getattr(head, measure)) is not None]
    return f"{min(values):.2f}–{max(values):.2f}" if values else "–"
