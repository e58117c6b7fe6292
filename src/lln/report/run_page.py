"""The page of training runs: results, curves, attention over training, and where it comes from."""

import html
import json
from collections.abc import Sequence
from statistics import fmean
from string import Template
from typing import Any

from lln.report.charts import Chart, attention_charts, chart_data, sections
from lln.report.page import assemble, count
from lln.report.results import Group, final_keys, group_runs, quantity, tabulate
from lln.report.runs import Run

KINDS = {
    "pretrain": "pre-training",
    "finetune": "fine-tuning",
    "vit": "image classification",
    "lra": "the Long Range Arena",
}
ATTENTION = Template("""<section>
  <h2>Attention over training</h2>
  <p><b>Temperature</b> is 1 over the standard deviation of the scores within a row: low means sharp. <b>Entropy</b> is the
    mean over rows of P. The <b>spectral gap</b> 1 − |λ₂| tells how fast repeated attention forgets where it began.
    <b>α</b> and <b>β</b> scale queries and keys of LLN attention so that it concentrates as softmax attention would.</p>
  <div class="choice">
    <label>Run <select id="run"></select></label>
    <label>Layer <select id="layer"></select></label>
    <output id="shown"></output>
  </div>
  $figures
</section>""")  # noqa: E501
SPREAD = "<p>Mean ± standard deviation over the seeds of a mixer, then each run.</p>"
RESULTS = Template("""<section>
  <h2>Results</h2>
  $text
  <div class="table" role="region" aria-label="Results" tabindex="0"><table>
    <thead><tr><th scope="col">mixer</th>$columns</tr></thead>
    $rows
  </table></div>
</section>""")


def build_run_page(runs: Sequence[Run], *, footer: str = "") -> str:
    """The page as text.

    Args:
        runs: at least one; shown side by side.
        footer: a line on when and with what.
    """
    groups = group_runs(runs)
    kinds = dict.fromkeys(KINDS.get(run.kind, run.kind) for run in runs)
    labels = dict.fromkeys(run.label for run in runs)
    return assemble(
        "run_page",
        title=", ".join(dict.fromkeys(run.name for run in runs)),
        lead=f"{count(len(runs), 'run')} of {' and '.join(kinds)}: {', '.join(labels)}.",
        facts=_facts(groups),
        parts={
            "notes": _notes(groups),
            "results": _results(groups),
            "figures": "".join(
                f"<section><h2>{title}</h2>{_texts(charts)}{_figures(charts)}</section>"
                for title, charts in sections(runs).items()
            ),
            "attention": _attention(attention_charts(runs)),
            "origins": _origins(groups),
        },
        data=chart_data(groups),
        footer=footer,
    )


def _facts(groups: list[Group]) -> dict[str, str]:
    """The best of each final number; experiments are different tasks and not compared."""
    if len({group.runs[0].name for group in groups}) > 1:
        return {}
    facts = {}
    for key in final_keys(groups):
        shown = quantity(key)
        means = {group.title: fmean(of) for group in groups if (of := group.values(key))}
        if shown.best is None:
            continue
        best = shown.best(means, key=means.__getitem__)
        end = "lowest" if shown.best is min else "highest"
        name = f"{end} {shown.title}: {best}" if len(groups) > 1 else shown.title
        facts[html.escape(name)] = shown.show([means[best]])
    return facts


def _notes(groups: list[Group]) -> str:
    notes = [
        f"<li><b>{html.escape(group.run_title(run))}</b>: {html.escape(note)}</li>"
        for group in groups
        for run in group.runs
        for note in run.notes
    ]
    return f'<ul class="notes" aria-label="Notes">{"".join(notes)}</ul>' if notes else ""


def _results(groups: list[Group]) -> str:
    table = tabulate(groups)
    rows = []
    for title, lines in table.rows.items():
        # A long title may break where an option begins.
        name = html.escape(title).replace("+", "+<wbr>").replace("=", "=<wbr>")
        head = f'<th scope="rowgroup" rowspan="{len(lines)}">{name}</th>'
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in lines]
        rows.append(f"<tbody><tr>{head}{'</tr><tr>'.join(cells)}</tr></tbody>")
    several = any(len(group.runs) > 1 for group in groups)
    return RESULTS.substitute(
        text=SPREAD if several else "",
        columns="".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns),
        rows="".join(rows),
    )


def _figures(charts: Sequence[Chart]) -> str:
    figures = "".join(
        f"<figure><figcaption>{html.escape(chart.title)}</figcaption>"
        f'<div id="{html.escape(chart.key)}" class="curve"></div></figure>'
        for chart in charts
    )
    columns = {1: "one", 2: "two", 4: "two"}.get(len(charts), "")
    return f'<div class="row {columns}">{figures}</div>'


def _texts(charts: Sequence[Chart]) -> str:
    return "".join(f"<p>{chart.text}</p>" for chart in charts if chart.text)


def _attention(charts: list[Chart]) -> str:
    if not charts:
        return ""
    measures = [chart for chart in charts if chart.key not in ("alpha", "beta")]
    matching = [chart for chart in charts if chart.key in ("alpha", "beta")]
    rows = [_figures(row) for row in (measures, matching) if row]
    return ATTENTION.substitute(figures="".join(rows))


def _origins(groups: list[Group]) -> str:
    """Commands and versions, once for all runs that share them."""
    shared: dict[str, list[str]] = {}
    configs = []
    for group in groups:
        for run in group.runs:
            title = html.escape(group.run_title(run))
            shared.setdefault(_origin(run), []).append(title)
            configs.append(
                f"<details><summary>{title}</summary><p>{html.escape(_when(run))}</p>"
                f"<pre>{html.escape(_pretty(run.config))}</pre></details>"
            )
    blocks = "".join(
        origin if len(shared) == 1 else f"<p>{', '.join(titles)}</p>{origin}"
        for origin, titles in shared.items()
    )
    return (
        f"<section><h2>Command, versions and machine</h2>{blocks}</section>"
        f"<section><h2>Configurations</h2>{''.join(configs)}</section>"
    )


def _origin(run: Run) -> str:
    facts = {**run.versions, "commit": run.commit, **run.machine}
    listed = "".join(
        f"<div><dt>{html.escape(str(name))}</dt><dd>{html.escape(str(value))}</dd></div>"
        for name, value in facts.items()
        if value is not None
    )
    return f'<pre>{html.escape(run.command)}</pre><dl class="origin">{listed}</dl>'


def _when(run: Run) -> str:
    return f"Started {run.started or '–'}, finished {run.finished or '–'}"


def _pretty(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False)
