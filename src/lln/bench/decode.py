"""`lln bench decode`: time per token and memory of the past, early and late in a long text."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lln
from lln.bench import cases, record
from lln.bench.timing import interleave, rounds, threads
from lln.files import write_json
from lln.functional.recurrent import state_tensors

if TYPE_CHECKING:
    from rich.table import Table

REFERENCE = "softmax"  # with the keys and values of all tokens so far
RECURRENT = ("lln", "lln_diag")
AT_ONCE = 16  # tokens per timed call, whose mean hides how coarse a clock is
Step = Callable[[Tensor, Tensor, Tensor, Any], Any]


@dataclass(frozen=True)
class Setting:
    """What is measured: one layer that decodes.

    Attributes:
        tokens: after how many, the first being what the others are compared with.
        repeats: rounds of timing, see `interleave`.
    """

    tokens: tuple[int, ...] = (100, 1000, 10_000)
    batch: int = 1
    heads: int = 12
    head_dim: int = 64
    threads: int = 2
    repeats: int = 9

    @property
    def steps(self) -> int:
        """How often `run` calls `advance`."""
        names = (REFERENCE, *RECURRENT)
        return len(RECURRENT) * len(self.tokens) + rounds(
            len(names) * len(self.tokens), self.repeats
        )


def _recurrent(name: str, x: cases.Inputs) -> Step:
    core = lln.build_core(name, heads=x.q.shape[1], head_dim=x.q.shape[3])
    with lln.matching.calibrating(core):
        core(x.q, x.k, x.v, causal=True)

    def step(q: Tensor, k: Tensor, v: Tensor, state: Any) -> Any:
        return core.recurrent(q, k, v, state)[1]  # type: ignore[operator]

    return step


def _softmax(q: Tensor, k: Tensor, v: Tensor, state: Any) -> Any:
    keys, values = torch.cat([state[0], k], 2), torch.cat([state[1], v], 2)
    F.scaled_dot_product_attention(q, keys, values)
    return keys, values


@torch.no_grad()
def run(setting: Setting, *, advance: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measures, and returns what `decode.json` holds."""
    load = record.load()
    longest = max(*setting.tokens, AT_ONCE)
    x = cases.inputs(setting.batch, setting.heads, longest, setting.head_dim)
    steps: dict[str, Step] = {REFERENCE: _softmax}
    states: dict[str, dict[int, Any]] = {
        REFERENCE: {n: (x.k[:, :, :n].clone(), x.v[:, :, :n].clone()) for n in setting.tokens}
    }
    calls = {}
    with threads(setting.threads):
        for name in RECURRENT:
            steps[name] = _recurrent(name, x)
            states[name] = _decode(steps[name], x, setting.tokens, advance)
        for name, step in steps.items():
            for n, state in states[name].items():
                calls[f"{name} {n}"] = _some_tokens(step, x, state)
        timings = interleave(calls, repeats=setting.repeats, seconds=0.05, advance=advance)
    results = []
    for name in steps:
        for n, state in states[name].items():
            seconds, first = (timings[f"{name} {m}"].median for m in (n, setting.tokens[0]))
            results.append(
                {
                    "attention": name,
                    "tokens": n,
                    "bytes": sum(x.untyped_storage().nbytes() for x in state_tensors(state)),
                    "seconds_per_token": seconds / AT_ONCE,
                    "times_first": seconds / first,
                    "times_softmax": seconds / timings[f"{REFERENCE} {n}"].median,
                }
            )
    return {
        "benchmark": "decode",
        **record.environment(),
        "load_before": load,
        "setting": asdict(setting),
        "results": results,
    }


def _decode(
    step: Step, x: cases.Inputs, tokens: tuple[int, ...], advance: Callable[[], object]
) -> dict[int, Any]:
    """The states after so many tokens, one by one."""
    state, states = None, {}
    for n in range(max(tokens)):
        state = step(*_token(x, n), state)
        if n + 1 in tokens:
            states[n + 1] = state
            advance()
    return states


def _some_tokens(step: Step, x: cases.Inputs, state: Any) -> Callable[[], object]:
    def call() -> None:
        past = state
        for n in range(AT_ONCE):
            past = step(*_token(x, n), past)

    return call


def _token(x: cases.Inputs, n: int) -> tuple[Tensor, Tensor, Tensor]:
    return x.q[:, :, n : n + 1], x.k[:, :, n : n + 1], x.v[:, :, n : n + 1]


def table(report: dict[str, Any]) -> "Table":
    """The report for a terminal."""
    from rich.table import Table

    setting = report["setting"]
    result = Table(
        title=f"Decoding: one layer, B={setting['batch']}, H={setting['heads']}, "
        f"D={setting['head_dim']}, float32, {setting['threads']} CPU threads"
    )
    first = f"× at {setting['tokens'][0]:,}"
    for title in ("attention", "tokens", "bytes of the past", "µs per token", first, "× softmax"):
        result.add_column(title, justify="left" if title == "attention" else "right")
    for row in report["results"]:
        result.add_row(
            row["attention"],
            f"{row['tokens']:,}",
            f"{row['bytes']:,}",
            f"{row['seconds_per_token'] * 1e6:,.0f}",
            f"{row['times_first']:.2f}",
            f"{row['times_softmax']:.2f}",
        )
    return result


def save(report: dict[str, Any], folder: Path) -> None:
    """Writes `decode.json` into `folder`."""
    write_json(folder / "decode.json", report)
