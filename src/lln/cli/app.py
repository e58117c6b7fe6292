"""The commands of `lln`. Each parses its options and leaves the work to the package."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import lln
from lln.bench import cases, decode, instruments, matching, op, overview
from lln.bench.record import load
from lln.cli import listing
from lln.cli.console import Refusal, need_matplotlib, progress, writing
from lln.cli.convert import EPILOG as CONVERT_EPILOG
from lln.cli.convert import convert
from lln.cli.demo import EPILOG as DEMO_EPILOG
from lln.cli.demo import demo
from lln.cli.figure import EPILOG as FIGURE_EPILOG
from lln.cli.figure import figure
from lln.cli.measure import EPILOG as MEASURE_EPILOG
from lln.cli.measure import measure
from lln.cli.options import choices, find_device, numbers
from lln.cli.report import EPILOG as REPORT_EPILOG
from lln.cli.report import report
from lln.cli.train import FINETUNE_EPILOG, PRETRAIN_EPILOG, finetune, pretrain
from lln.matching.calibration import HEAD_DIMS, LENGTHS, SHIPPED, calibrate, save


class OneLineErrors(TyperGroup):
    """Says in one line what is wrong with an option, instead of a usage page."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise Refusal(f"{args[0]!r} is not one of the commands {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        run = super().main
        if not standalone_mode:
            return run(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = run(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            sys.exit(1)
        except Exception as error:
            # Which class this is depends on typer's version; what it can do does not.
            if not hasattr(error, "format_message"):
                raise
            message = " ".join(error.format_message().split())
            Console(stderr=True, soft_wrap=True).print(
                f"error: {message}", markup=False, highlight=False
            )
            sys.exit(2)
        sys.exit(code or 0)


app = typer.Typer(
    cls=OneLineErrors,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
bench = typer.Typer(cls=OneLineErrors, invoke_without_command=True, rich_markup_mode="rich")
app.add_typer(bench, name="bench", help="Measure speed and memory on this machine.")
app.command("measure", epilog=MEASURE_EPILOG)(measure)
app.command("demo", epilog=DEMO_EPILOG)(demo)
app.command("convert", epilog=CONVERT_EPILOG)(convert)
app.command("figure", epilog=FIGURE_EPILOG)(figure)
app.command("pretrain", epilog=PRETRAIN_EPILOG)(pretrain)
app.command("finetune", epilog=FINETUNE_EPILOG)(finetune)
app.command("report", epilog=REPORT_EPILOG)(report)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"lln {lln.__version__}")
        raise typer.Exit()


@app.callback(epilog="Examples:  lln list  ·  lln demo  ·  lln bench op --n 2048,8192 --threads 4")
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Attention that behaves like softmax attention and costs O(N)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.callback(epilog="Example:  lln bench op --n 2048,8192 --attn lln,performer,sdpa")
def start_bench(context: typer.Context) -> None:
    """Measure speed and memory on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Examples:  lln list  ·  lln list --json | jq '.[].name'")
def list_mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For the README.")] = False,
) -> None:
    """List the attention mechanisms that lln.build knows."""
    if as_json:
        typer.echo(json.dumps(listing.mechanisms(), indent=2, ensure_ascii=False))
    elif as_markdown:
        typer.echo(listing.markdown())
    else:
        Console().print(listing.table())


@bench.command(
    "overview",
    epilog="Examples:  lln bench overview  ·  lln bench overview --out /tmp/overview --n 512,2048",
)
def bench_overview(
    out: Annotated[Path, typer.Option(help="Folder for overview.png and overview.json.")] = Path(
        "overview"
    ),
    n: Annotated[list[str] | None, typer.Option(help="Sequence lengths.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
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
    epilog="Examples:  lln bench op  ·  lln bench op --attn lln,performer,sdpa --n 2048,8192  ·  "
    "lln bench op --attn all --heads 4 --out results",
)
def bench_op(
    n: Annotated[
        list[str] | None,
        typer.Option(
            help="Sequence lengths, repeated or with commas; 8192, but for [bold]--attn all[/bold] "
            f"{', '.join(map(str, op.LENGTHS))}."
        ),
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="H.")] = 12,
    head_dim: Annotated[int, typer.Option(min=1, help="D.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="B.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(op.DTYPES)}.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds, each over all cases.")] = 5,
    attn: Annotated[
        list[str] | None,
        typer.Option(
            help="Names as in [bold]lln list[/bold], all, linear (all but O(N²)), or of "
            f"{', '.join(cases.REFERENCES)}; products always run. "
            "By default LLN and its references."
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option(help="Measure peak memory too, a process for each.")
    ] = True,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for op.json and op.png.")] = Path("bench"),
) -> None:
    """Time attention, forward and backward, against bare matrix products and SDPA."""
    need_matplotlib("the picture")
    chosen = choices("--attn", attn or ["default"], [*op.GROUPS, *cases.names()])
    setting = op.Setting(
        names=[name for item in chosen for name in op.GROUPS.get(item, (item,))],
        n=numbers("--n", n) if n else op.LENGTHS if "all" in chosen else (8192,),
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype=choices("--dtype", [dtype], list(op.DTYPES))[0],
        device=find_device(device),
        threads=threads,
        repeats=repeats,
        memory=memory,
    )
    _note_a_busy_machine()
    with progress("measuring", setting.steps) as advance:
        report = op.run(setting, advance=advance)
    Console().print(*op.tables(report), sep="\n")
    with writing(out):
        op.save(report, out)


@bench.command("instruments", epilog="Example:  lln bench instruments --out results/bench")
def bench_instruments(
    n: Annotated[int, typer.Option(min=2, help="Sequence length.")] = 65536,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
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


@bench.command("decode", epilog="Example:  lln bench decode --out results/bench")
def bench_decode(
    tokens: Annotated[
        list[str] | None, typer.Option(help="Lengths of the past; 100,1000,10000.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="H.")] = 12,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Folder for decode.json.")] = None,
) -> None:
    """Time one token after a short and a long past, and measure what memory the past takes."""
    setting = decode.Setting(
        tokens=numbers("--tokens", tokens) if tokens else decode.Setting.tokens,
        heads=heads,
        threads=threads,
    )
    _note_a_busy_machine()
    with progress("measuring", setting.steps) as advance:
        report = decode.run(setting, advance=advance)
    Console().print(decode.table(report))
    if out is not None:
        with writing(out):
            decode.save(report, out)


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


@app.command("calibrate", epilog="Example:  lln calibrate --dims 40,48 --out calibration.json")
def run_calibrate(
    dims: Annotated[list[str] | None, typer.Option(help="Head dimensions; all that ship.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Sets of keys per measurement.")] = 64,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)] = SHIPPED,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
) -> None:
    """Measure anew how α and β follow from the moments of q and k; takes a while."""
    chosen = numbers("--dims", dims) if dims else HEAD_DIMS
    with progress("calibrating", len(chosen) * len(LENGTHS)) as advance:
        result = [calibrate(d, LENGTHS, draws=draws, seed=seed, advance=advance) for d in chosen]
    with writing(out):
        save(result, out)


def _note_a_busy_machine() -> None:
    cores, others = os.cpu_count() or 1, load() or 0.0
    if others > cores / 2:
        typer.echo(
            f"note: this machine is busy (load {others:.1f} on {cores} cores), which slows threads "
            "that wait for each other; OMP_WAIT_POLICY=PASSIVE in the environment makes it less so",
            err=True,
        )
