"""`lln bench model`: training steps of whole models."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from lln.bench import model
from lln.bench.model_tables import tables
from lln.cli.benchmarking import Device, Gate, Threads, measure
from lln.cli.console import Refusal, need_matplotlib, writing
from lln.cli.options import choices, find_device, numbers
from lln.registry import parse

EPILOG = (
    "Examples:  lln bench model --model small --n 512,1024,2048  ·  "
    "lln bench model --model lra --batch 4  ·  "
    "lln bench model --model 4x256x4 --mixers softmax,lln_diag+block_size=128"
)


def bench_model(
    which: Annotated[
        str,
        typer.Option(
            "--model",
            help=f"{', '.join(model.SIZES)} (RoBERTa's masked language modelling, Table 2), "
            "layers x dim x heads such as 4x256x4, or lra (the tasks of Table 4).",
        ),
    ] = "base",
    mixers: Annotated[
        list[str] | None,
        typer.Option(
            help="Names as in [bold]lln list[/bold], with options such as "
            f"lln_diag+block_size=128; {','.join(model.MIXERS)}."
        ),
    ] = None,
    n: Annotated[
        list[str] | None,
        typer.Option(help=f"Sequence lengths; {','.join(map(str, model.LENGTHS))}."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences per step; 1, for lra as published.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help=f"Of autocast, one of {', '.join(model.DTYPES)}.")
    ] = "float32",
    threads: Threads = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Steps, fewer if they are slow.")] = 5,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds for one step.")] = 900,
    gate: Gate = True,
    device: Device = "cpu",
    out: Annotated[
        Path, typer.Option(help="Folder for model.json, model.md and model.png.")
    ] = Path("bench"),
) -> None:
    """Time training steps of whole models in turns, and their memory, a process for each.

    Tables are written as cells come in. The same command, interrupted, goes on from there.
    """
    need_matplotlib("the picture")
    if find_spec("transformers") is None:
        raise Refusal("lln bench model needs transformers: pip install 'lln[train]'")
    labels = [label for item in mixers or model.MIXERS for label in item.split(",") if label]
    try:
        size, columns = model.subject(which, numbers("--n", n) if n else None, batch)
        for label in labels:
            parse(label)
    except ValueError as error:
        raise Refusal(str(error)) from None
    setting = model.Setting(
        mixers=labels,
        size=size,
        columns=columns,
        dtype=choices("--dtype", [dtype], list(model.DTYPES))[0],
        device=find_device(device),
        threads=threads,
        repeats=repeats,
        timeout=timeout,
        gate=gate,
    )

    def keep(report: dict[str, Any]) -> None:
        with writing(out, announced=False):
            model.save(report, out)

    run = partial(model.run, folder=out, keep=keep)
    measure(run, setting, tables, model.save, out)
