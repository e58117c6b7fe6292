"""The page of a survey: what every head of a model does."""

import math
from collections.abc import Iterable
from dataclasses import asdict
from statistics import median
from string import Template

from lln.report.page import assemble, count
from lln.report.survey import LOG_NORMAL, TOLERANCE, Survey

VIEWER = """<section><figure>
  <h2>Who attends to whom</h2>
  <p>P of the chosen head on a short input, the first $count tokens read on their own.
    A row is the token that attends and sums to 1; a column is the token that it attends to.</p>
  <div id="viewer" class="square"></div>
</figure></section>"""


def build_survey_page(survey: Survey, *, footer: str = "") -> str:
    """The page as text.

    Args:
        survey: what was measured.
        footer: a line on when and with what.
    """
    return assemble(
        "survey_page",
        title=f"Attention of {survey.model}",
        lead=_lead(survey),
        facts=_facts(survey),
        parts={
            "uniform": f"{math.log2(survey.tokens):.1f}",
            "tokens": f"{survey.tokens:.0f}",
            "viewer": _viewer(survey),
        },
        data=asdict(survey),
        footer=footer,
    )


def _lead(survey: Survey) -> str:
    layers = count(len(survey.layers), "layer")
    sequences = count(survey.sequences, "sequence")
    return (
        f"{layers} of {survey.attention} attention, measured on {survey.source}: "
        f"{sequences} of {survey.tokens:.0f} tokens on average."
    )


def _facts(survey: Survey) -> dict[str, str]:
    heads = survey.heads
    return {
        "median temperature": _median(head.temperature for head in heads),
        "median entropy, bits": _median(head.entropy for head in heads),
        f"heads with log-normal weights (distance &lt; {LOG_NORMAL})": (
            f"{sum(head.log_normal for head in heads)} of {len(heads)}"
        ),
        f"temperatures that σ<sub>q</sub> σ<sub>k</sub> misses by over {TOLERANCE - 1:.0%}": (
            f"{sum(head.mispredicted for head in heads)} of {len(heads)}"
        ),
    }


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else "–"


def _viewer(survey: Survey) -> str:
    if survey.words is None:
        return ""
    return Template(VIEWER).substitute(count=len(survey.words))
