"""`lln bench`: speed and memory on this machine, and how close LLN comes to softmax."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lln.bench import cases, instruments, long, matching, model, op, overview
from lln.bench.model_tables import tables as model_tables
from lln.bench.op_tables import tables as op_tables
from lln.bench.peers import PEERS, installed
from lln.bench.record import load
from lln.bench.references import REFERENCES
from lln.cli.console import Refusal, need_matplotlib, progress, writing
from lln.cli.groups import OneLineErrors
from lln.cli.options import choices, find_device, numbers
from lln.registry import parse

bench = typer.Typer(cls=OneLineErrors, invoke_without_command=True, rich_markup_mode="rich")

Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Gate = Annotated[
    bool,
    typer.Option(
        help="First check what every mechanism must do (values, gradients, masks, causality), and "
        "do not time what fails."
    ),
]


@bench.callback(epilog="Example:  lln bench op --n 2048,8192 --attn lln,performer,naive")
def start_bench(context: typer.Context) -> None:
    """Measure speed and memory on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command(
    "overview",
    epilog="Examples:  lln bench overview  ·  lln bench overview --out /tmp/overview --n 512,2048",
)
def bench_overview(
    out: Annotated[Path, typer.Option(help="Folder for overview.png and overview.json.")] = Path(
        "overview"
    ),
    n: Annotated[list[str] | None, typer.Option(help="Sequence lengths.")] = None,
    threads: Threads = 2,
) -> None:
    """Compare LLN with softmax attention: speed, memory, concentration (about two minutes)."""
    need_matplotlib("the picture")
    lengths = numbers("--n", n) if n else overview.LENGTHS
    setting = overview.Setting(n=lengths, threads=threads)
    _note_a_busy_machine()
    with progress("measuring", setting.steps) as advance:
        report = overview.run(setting, advance=advance)
    Console().print(*overview.tables(report), sep="\n")
    with writing(out):
        overview.save(report, out)


@bench.command(
    "op",
    epilog="Examples:  lln bench op  ·  lln bench op --attn lln,performer --n 128,512,2048  ·  "
    "lln bench op --attn all --heads 4 --out results  ·  "
    "lln bench op --passes decoding --n 1024,65536",
)
def bench_op(
    n: Annotated[
        list[str] | None,
        typer.Option(
            help="Sequence lengths, repeated or with commas; 8192, but for [bold]--attn all[/bold] "
            f"{', '.join(map(str, op.LENGTHS))}. With several: powers of N, and from which N on "
            "each is faster than SDPA."
        ),
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="H.")] = 12,
    head_dim: Annotated[int, typer.Option(min=1, help="D.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="B.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(op.DTYPES)}.")] = "float32",
    threads: Threads = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds, each over all cases.")] = 5,
    attn: Annotated[
        list[str] | None,
        typer.Option(
            help="Names as in [bold]lln list[/bold], all, linear (all but O(N²)), peers (other "
            "people's code, those that are installed), or of "
            f"{', '.join([*REFERENCES, *PEERS])}; products and sdpa always run. By default "
            "LLN, its references and the peers."
        ),
    ] = None,
    passes: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(op.PASSES)}; all by default.")
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Measure causal forms too.")] = False,
    memory: Annotated[
        bool,
        typer.Option(
            help="Measure peak memory too, a process for each; what runs out of memory or time "
            "there is not timed."
        ),
    ] = True,
    gate: Gate = True,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for op.json, op.md and op.png.")] = Path(
        "bench"
    ),
) -> None:
    """Time attention against bare matrix products and SDPA: whole sequences, and decoding."""
    need_matplotlib("the picture")
    chosen = choices("--attn", attn or ["default"], [*op.GROUPS, *cases.names()])
    names = [name for item in chosen for name in op.GROUPS.get(item, (item,))]
    if missing := [name for name in names if name in PEERS and name not in installed()]:
        raise Refusal(f"'--attn' {', '.join(missing)} needs a package: pip install 'lln[peers]'")
    setting = op.Setting(
        names=names,
        n=numbers("--n", n) if n else op.LENGTHS if "all" in chosen else (8192,),
        passes=choices("--passes", passes, list(op.PASSES)) if passes else op.PASSES,
        causal=causal,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype=choices("--dtype", [dtype], list(op.DTYPES))[0],
        device=find_device(device),
        threads=threads,
        repeats=repeats,
        memory=memory,
        gate=gate,
    )
    _measure(op.run, setting, op_tables, op.save, out)


@bench.command(
    "model",
    epilog="Examples:  lln bench model --model small --n 512,1024,2048  ·  "
    "lln bench model --model lra --batch 4  ·  "
    "lln bench model --model 4x256x4 --mixers softmax,lln_diag+block_size=128",
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
    timeout: Annotated[int, typer.Option(min=1, help="Seconds for one measurement.")] = 900,
    gate: Gate = True,
    device: Device = "cpu",
    out: Annotated[
        Path, typer.Option(help="Folder for model.json, model.md and model.png.")
    ] = Path("bench"),
) -> None:
    """Time training steps of whole models, and their memory, a process for each."""
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
    _measure(model.run, setting, model_tables, model.save, out)


@bench.command("long", epilog="Example:  lln bench long --n 65536,262144,1048576 --threads 4")
def bench_long(
    n: Annotated[
        list[str] | None,
        typer.Option(help=f"Sequence lengths; {','.join(map(str, long.Setting.n))}."),
    ] = None,
    attn: Annotated[
        list[str] | None, typer.Option(help="Names as in [bold]lln bench op[/bold]; lln_diag.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="H.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="D.")] = 64,
    heads_at_once: Annotated[
        int, typer.Option(min=1, help="Heads whose intermediate results share the memory.")
    ] = 1,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(op.DTYPES)}.")] = "float32",
    threads: Threads = 2,
    gate: Gate = True,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for long.json and long.md.")] = None,
) -> None:
    """Run one very long sequence forward and backward: its time and all the memory it takes."""
    try:
        setting = long.Setting(
            names=choices("--attn", attn, cases.names()) if attn else long.Setting.names,
            n=numbers("--n", n) if n else long.Setting.n,
            heads=heads,
            head_dim=head_dim,
            heads_at_once=heads_at_once,
            dtype=choices("--dtype", [dtype], list(op.DTYPES))[0],
            device=find_device(device),
            threads=threads,
            gate=gate,
        )
    except ValueError as error:
        raise Refusal(str(error)) from None
    _measure(long.run, setting, long.tables, long.save, out)


@bench.command("instruments", epilog="Example:  lln bench instruments --out results/bench")
def bench_instruments(
    n: Annotated[int, typer.Option(min=2, help="Sequence length.")] = 65536,
    threads: Threads = 2,
    out: Annotated[Path | None, typer.Option(help="Folder for instruments.json.")] = None,
) -> None:
    """Time the measures of one long sequence, and their memory."""
    setting = instruments.Setting(n=n, threads=threads)
    _note_a_busy_machine()
    with progress("measuring", setting.steps) as advance:
        report = instruments.run(setting, advance=advance)
    Console().print(instruments.table(report))
    if out is not None:
        with writing(out):
            instruments.save(report, out)


@bench.command("matching", epilog="Example:  lln bench matching --out results/matching")
def bench_matching(
    head_dim: Annotated[list[str] | None, typer.Option(help="D; 32,64,128.")] = None,
    n: Annotated[list[str] | None, typer.Option(help="Lengths; 256,512,1024.")] = None,
    draws: Annotated[int, typer.Option(min=2, help="Inputs that a figure averages.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("matching"),
) -> None:
    """Measure how close LLN's entropy, spectral gap and variance come to softmax's."""
    need_matplotlib("the picture")
    setting = matching.Setting(
        head_dims=numbers("--head-dim", head_dim) if head_dim else (32, 64, 128),
        n=numbers("--n", n) if n else (256, 512, 1024),
        draws=draws,
        seed=seed,
    )
    with progress("measuring", setting.steps) as advance:
        report = matching.run(setting, advance=advance)
    typer.echo(matching.markdown(report))
    with writing(out):
        matching.save(report, out)


def _measure(run: Any, setting: Any, tables: Any, save: Any, out: Path | None) -> None:
    """Runs a benchmark that has a gate, and fails if that found anything."""
    _note_a_busy_machine()
    with progress("measuring", setting.steps) as advance:
        report = run(setting, advance=advance)
    Console().print(*(grid.rich() for grid in tables(report)), sep="\n")
    if out is not None:
        with writing(out):
            save(report, out)
    if report["red"]:
        raise Refusal(f"not timed, as the contract is broken: {', '.join(report['red'])}")


def _note_a_busy_machine() -> None:
    cores, others = os.cpu_count() or 1, load() or 0.0
    if others > cores / 2:
        typer.echo(
            f"note: this machine is busy (load {others:.1f} on {cores} cores), which slows threads "
            "that wait for each other; OMP_WAIT_POLICY=PASSIVE in the environment makes it less so",
            err=True,
        )
