"""The page of a survey: one HTML file that needs nothing else, not even a network.

Whatever comes from a model or its input is data to the page: it is escaped as text, and as JSON it
cannot end the script element that holds it.
"""

import html
import importlib.util
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from statistics import median
from string import Template

from lln.report.survey import LOG_NORMAL, TOLERANCE, Survey

VIEWER = """<section><figure>
  <h2>Who attends to whom</h2>
  <p>P of the chosen head on a short input, the first $count tokens read on their own.
    A row is the token that attends and sums to 1; a column is the token that it attends to.</p>
  <div id="viewer" class="square"></div>
</figure></section>"""


def build_page(survey: Survey, *, footer: str = "") -> str:
    """The page as text.

    Args:
        survey: what was measured.
        footer: a line on when and with what.
    """
    if importlib.util.find_spec("plotly") is None:
        raise ModuleNotFoundError("the page needs plotly: pip install 'lln[report]'", name="plotly")
    from plotly.offline import get_plotlyjs

    words = Template(_asset("page.html"))
    return words.substitute(
        name=html.escape(survey.model),
        subject=html.escape(_subject(survey)),
        facts=_facts(survey),
        uniform=f"{math.log2(survey.tokens):.1f}",
        tokens=f"{survey.tokens:.0f}",
        viewer=_viewer(survey),
        footer=html.escape(footer),
        style=_asset("page.css"),
        script=_asset("page.js"),
        plotly=get_plotlyjs(),
        data=_json(survey),
    )


def _asset(name: str) -> str:
    return resources.files("lln.report").joinpath(name).read_text(encoding="utf-8")


def _subject(survey: Survey) -> str:
    layers = _count(len(survey.layers), "layer")
    sequences = _count(survey.sequences, "sequence")
    return (
        f"{layers} of {survey.attention} attention, measured on {survey.source}: "
        f"{sequences} of {survey.tokens:.0f} tokens on average."
    )


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _facts(survey: Survey) -> str:
    """The findings in four numbers."""
    heads = survey.heads
    facts = {
        "median temperature": _median(head.temperature for head in heads),
        "median entropy, bits": _median(head.entropy for head in heads),
        f"heads with log-normal weights (distance < {LOG_NORMAL})": (
            f"{sum(head.log_normal for head in heads)} of {len(heads)}"
        ),
        f"temperatures that σ<sub>q</sub> σ<sub>k</sub> misses by over {TOLERANCE - 1:.0%}": (
            f"{sum(head.mispredicted for head in heads)} of {len(heads)}"
        ),
    }
    return "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts.items())


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else "–"


def _viewer(survey: Survey) -> str:
    if survey.words is None:
        return ""
    return Template(VIEWER).substitute(count=len(survey.words))


def _json(survey: Survey) -> str:
    """JSON that is safe inside a script element: no `<` in it, so no tag and no comment."""
    text = json.dumps(asdict(survey), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
