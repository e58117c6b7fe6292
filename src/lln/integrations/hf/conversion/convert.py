"""The stages of a conversion, one after another."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from lln.integrations.hf.conversion.plan import Conversion, Plan, Stage
from lln.integrations.hf.conversion.work import Bar, Work


def no_bar(what: str, total: int) -> AbstractContextManager[Callable[[], object]]:
    """Shows nothing."""
    return nullcontext(lambda: None)


def convert(
    source: Path,
    lines: list[str],
    plan: Plan,
    *,
    device: torch.device | str = "cpu",
    unfinished: Path | None = None,
    bar: Bar = no_bar,
    tell: Callable[[Stage], object] = lambda stage: None,
) -> Conversion:
    """Converts a pre-trained model that reads text.

    Args:
        source: folder of the model and of its tokenizer.
        lines: of a text to learn from; the end of it is kept to measure by.
        plan: how.
        device: where to compute.
        unfinished: a file for the state, from which the same call goes on after an interruption;
            it is left where it is.
        bar: shows progress.
        tell: called after each stage, also after those that an earlier call did.
    """
    work = Work(source, lines, plan, device, unfinished)
    for stage in work.stages:
        tell(stage)
    for name in work.planned[len(work.stages) :]:
        work.do(name, bar)
        tell(work.stages[-1])
    return Conversion(work.model, work.tokenizer, plan, work.layers, work.stages)
