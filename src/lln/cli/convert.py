"""`lln convert`: a pre-trained model with another attention that imitates softmax."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lln.bench.record import environment
from lln.cli.console import Refusal, progress, refusing, writing
from lln.cli.options import find_device
from lln.files import write
from lln.registry import parse
from lln.report.subject import find_model

if TYPE_CHECKING:
    from lln.integrations.hf.conversion import Conversion, Plan, Stage

EPILOG = (
    "Examples:  lln convert minilm --text book.txt --out minilm-lln  ·  "
    "lln convert path/to/model --text corpus.jsonl.gz --attn lln_diag+combine=learnable_ratio "
    "--finetune 500 --out converted  ·  then, in Python:  lln.hf.load('converted')"
)


def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder of a Hugging Face model that reads text (config.json, *.safetensors, "
            "tokenizer), or minilm, the encoder that the extra demo installs."
        ),
    ],
    text: Annotated[
        str,
        typer.Option(
            help="Text to learn from: a file (.txt, .jsonl, .parquet, also .gz or .xz), a folder "
            "with one for each split, or a name such as wikitext2. Of its training split, which of "
            "a single file are the first nine tenths, the last tenth is kept to measure by."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    attn: Annotated[
        str,
        typer.Option(
            help="Attention instead of softmax, its options after a plus: lln_diag+block_size=32. "
            "Several, with commas, go to folders in '--out' and are compared in a table."
        ),
    ] = "lln_diag",
    length: Annotated[int, typer.Option(min=8, help="Tokens of the longest passage.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Passages per step.")] = 16,
    steps: Annotated[int, typer.Option(min=0, help="Steps of distillation.")] = 200,
    rate: Annotated[float, typer.Option(min=0, help="Learning rate of distillation.")] = 3e-3,
    finetune: Annotated[
        int, typer.Option(min=0, help="Steps of training the whole model afterwards.")
    ] = 0,
    finetune_rate: Annotated[float, typer.Option(min=0, help="Learning rate of those.")] = 1e-4,
    seed: Annotated[int, typer.Option(min=0, help="Of the passages that are drawn.")] = 0,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")] = "cpu",
) -> None:
    """Replace the softmax attention of a pre-trained model, and teach the new one to imitate it.

    Stages: swap, calibrate, distil layer by layer, and with --finetune train the whole model. Each
    is judged on held-out text: the error of each layer, the cosine between embeddings before and
    after, and the rank correlation of the similarities of passages. The same command goes on where
    it was interrupted.
    """
    for package in ("transformers", "datasets"):
        if importlib.util.find_spec(package) is None:
            raise Refusal(f"lln convert needs {package}: pip install 'lln[train]'")
    device = find_device(device)
    with refusing():
        from lln.data import open_dataset
        from lln.integrations.hf.conversion import Plan

        plans = {
            label: Plan(
                *parse(label),
                length=length,
                batch_size=batch,
                steps=steps,
                rate=rate,
                finetune_steps=finetune,
                finetune_rate=finetune_rate,
                seed=seed,
            )
            for label in attn.split(",")
        }
        source, texts = find_model(model), open_dataset(text)
        if "text" not in texts.column_names:
            raise Refusal(f"'--text' {text} holds labelled sentences and no running text")
        lines = list(texts["text"])
        made = {"model": model, "text": text, "device": device, **environment(device)}
        if len(plans) == 1:
            _convert(source, lines, plans[attn], out, made)
            return
        for label, plan in plans.items():
            _convert(source, lines, plan, out / label, made)
    with writing(out / "comparison.md"):
        comparison = _comparison([out / label for label in plans])
        write(out / "comparison.md", lambda file: file.write_text(comparison, encoding="utf-8"))
    typer.echo(comparison)


def _convert(
    source: Path, lines: list[str], plan: "Plan", folder: Path, made: dict[str, Any]
) -> None:
    """One conversion, unless it is in `folder` already."""
    from lln.integrations.hf.conversion import convert

    if folder.exists():
        found = _read(folder)
        same = all(found.get("made", {}).get(key) == made[key] for key in ("model", "text"))
        if not same or found.get("plan") != plan.to_dict():
            raise Refusal(f"'--out' {folder} exists already: name a folder that does not")
        typer.echo(f"{folder} is there already, converted by the same command")
        return
    typer.echo(f"{plan.attention}:")
    unfinished = folder.with_name(f"{folder.name}.unfinished.safetensors")
    done = convert(
        source,
        lines,
        plan,
        device=made["device"],
        unfinished=unfinished,
        bar=progress,
        tell=_tell,
    )
    Console().print(_table(done))
    with writing(folder):
        done.save(folder, made=made)
    unfinished.unlink(missing_ok=True)


def _read(folder: Path) -> dict[str, Any]:
    """What an earlier conversion left in its folder."""
    try:
        found = json.loads((folder / "conversion.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tell(stage: "Stage") -> None:
    found = stage.fidelity
    error = sum(found.errors) / len(found.errors)
    typer.echo(
        f"  {stage.name:<12} {stage.seconds:5.0f} s   error {error:.3f}   "
        f"cosine {found.cosine:.3f}   correlation {found.correlation:.3f}"
    )


def _table(done: "Conversion") -> Table:
    """A line for each layer: its error after each stage."""
    table = Table(
        box=box.HORIZONTALS,
        title="Error of each layer, relative to softmax on the same input",
        caption="cosine and correlation: embeddings of held-out text, before and after",
    )
    table.add_column("layer", overflow="fold")
    for stage in done.stages:
        table.add_column(stage.name, justify="right")
    for place, layer in enumerate(done.layers):
        table.add_row(layer, *(f"{stage.fidelity.errors[place]:.3f}" for stage in done.stages))
    table.add_section()
    table.add_row("cosine", *(f"{stage.fidelity.cosine:.3f}" for stage in done.stages))
    table.add_row("correlation", *(f"{stage.fidelity.correlation:.3f}" for stage in done.stages))
    return table


def _comparison(folders: list[Path]) -> str:
    """A Markdown table: cosine and correlation of each conversion after each stage."""
    found = {folder.name: _read(folder)["stages"] for folder in folders}
    names = list(dict.fromkeys(stage["name"] for stages in found.values() for stage in stages))
    lines = [
        "| attention | " + " | ".join(names) + " | minutes |",
        "|---|" + "---|" * len(names) + "---:|",
    ]
    for label, stages in found.items():
        cells = {
            stage["name"]: f"{stage['fidelity']['cosine']:.3f} / "
            f"{stage['fidelity']['correlation']:.3f}"
            for stage in stages
        }
        minutes = sum(stage["seconds"] for stage in stages) / 60
        row = [label, *(cells.get(name, "–") for name in names), f"{minutes:.1f}"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"
