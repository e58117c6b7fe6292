"""What all pages share: one HTML file that needs nothing else, not even a network.

Whatever comes from a model, a run or its input is data to the page: it is escaped as text, and as
JSON it cannot end the script element that holds it.
"""

import html
import importlib.util
import json
from importlib import resources
from string import Template


def assemble(
    name: str,
    *,
    title: str,
    lead: str,
    facts: dict[str, str],
    parts: dict[str, str],
    data: object,
    footer: str,
) -> str:
    """The page as text, of the files `<name>.html` and `<name>.js`.

    Args:
        name: of those files.
        title: plain text.
        lead: what the page is about, in a sentence of plain text.
        facts: the findings in a few numbers, as HTML: what it is → its value.
        parts: what replaces the placeholders of the HTML file, as HTML.
        data: what the script reads, as JSON; without NaN or infinity.
        footer: a line of plain text on when and with what.
    """
    if importlib.util.find_spec("plotly") is None:
        raise ModuleNotFoundError("the page needs plotly: pip install 'lln[report]'", name="plotly")
    from plotly.offline import get_plotlyjs

    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        lead=html.escape(lead),
        facts="".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts.items()),
        body=Template(_asset(f"{name}.html")).substitute(parts),
        footer=html.escape(footer),
        style=_asset("page.css"),
        script=_asset("page.js") + _asset(f"{name}.js"),
        plotly=get_plotlyjs(),
        data=_json(data),
    )


def count(number: int, unit: str) -> str:
    """Such as `1 layer` or `2 layers`."""
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _asset(name: str) -> str:
    return resources.files("lln.report").joinpath(name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that is safe inside a script element: no `<` in it, so no tag and no comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
