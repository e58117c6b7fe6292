"""`lln bench`: speed and memory on this machine, and how close LLN comes to softmax."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lln.bench import cases, instruments, long, matching, op, overview
from lln.bench.op_tables import tables as op_tables
from lln.bench.peers import PEERS, installed
from lln.bench.references import REFERENCES
from lln.cli.bench_model import EPILOG as MODEL_EPILOG
from lln.cli.bench_model import bench_model
from lln.cli.benchmarking import Device, Gate, Threads, measure, note_a_busy_machine
from lln.cli.console import Refusal, need_matplotlib, progress, writing
from lln.cli.groups import OneLineErrors
from lln.cli.options import choices, find_device, numbers

bench = typer.Typer(cls=OneLineErrors, invoke_without_command=True, rich_markup_mode="rich")


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
    note_a_busy_machine()
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
    measure(op.run, setting, op_tables, op.save, out)


bench.command("model", epilog=MODEL_EPILOG)(bench_model)


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
    measure(long.run, setting, long.tables, long.save, out)


@bench.command("instruments", epilog="Example:  lln bench instruments --out results/bench")
def bench_instruments(
    n: Annotated[int, typer.Option(min=2, help="Sequence length.")] = 65536,
    threads: Threads = 2,
    out: Annotated[Path | None, typer.Option(help="Folder for instruments.json.")] = None,
) -> None:
    """Time the measures of one long sequence, and their memory."""
    setting = instruments.Setting(n=n, threads=threads)
    note_a_busy_machine()
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
