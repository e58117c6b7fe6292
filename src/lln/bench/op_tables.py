"""The tables of `lln bench op`."""

from typing import Any

from lln.bench import cases
from lln.bench.cases import CAUSAL
from lln.bench.grid import Grid, document
from lln.bench.op import DECODING, WHOLE
from lln.bench.record import origin

Report = dict[str, Any]


def tables(report: Report) -> list[Grid]:
    """A table per length and pass, decoding, how cost grows, and what was not timed."""
    setting = report["setting"]
    found = [
        _whole(report, title, n)
        for n in setting["n"]
        for title in WHOLE
        if title in setting["passes"]
    ]
    if DECODING in setting["passes"]:
        found.append(_decoding(report))
    if len(setting["n"]) > 1:
        found.append(_growth(report))
    if report["red"]:
        rows = [[name, reason] for name, reason in report["red"].items()]
        found.append(Grid("red: not timed, and no speed-up", ["case", "broken clause"], rows, 2))
    return found


def markdown(report: Report) -> str:
    """What `op.md` holds."""
    return document("lln bench op", origin(report), tables(report))


def _sizes(setting: dict[str, Any]) -> str:
    return (
        f"B={setting['batch']}, H={setting['heads']}, D={setting['head_dim']}, "
        f"{setting['dtype']}, {setting['device']}, threads={setting['threads']}"
    )


def _whole(report: Report, title: str, n: int) -> Grid:
    setting, backward = report["setting"], WHOLE[title]
    columns = ["case", "", "ms", "times\nproducts", "faster\nthan SDPA"]
    columns += ["times\nbidirectional"] if setting["causal"] else []
    columns += ["saved\nB/token", "peak\nMiB"] if backward else []
    rows = []
    for row in report["results"]:
        if row["n"] != n:
            continue
        cells = [row["case"], cases.find(row["case"]).label, *_ratios(row.get(title))]
        if row["problem"]:
            cells[2] = row["problem"]
        if setting["causal"]:
            causal = row.get(title) if row["case"].endswith(CAUSAL) else None
            cells.append(times(causal["times_bidirectional"]) if causal else "–")
        if backward:
            saved = row.get("saved_bytes_per_token")
            cells += ["–" if saved is None else f"{saved:,.0f}", mebibytes(row.get("peak"))]
        rows.append(cells)
    return Grid(f"{title}: N={n}, {_sizes(setting)}", columns, rows, named=2)


def _decoding(report: Report) -> Grid:
    setting = report["setting"]
    shortest = f"times\nN={min(setting['n'])}"
    columns = ["case", "N", "µs", "times\nproducts", "faster\nthan SDPA", shortest, "state\nbytes"]
    rows = [
        [
            row["case"],
            str(row["n"]),
            f"{1e6 * row[DECODING]['median']:,.0f}",
            *_ratios(row[DECODING])[1:],
            times(row["times_shortest"]),
            f"{row['bytes']:,}",
        ]
        for row in report["decoding"]
    ]
    return Grid(f"decoding: one token after N others, {_sizes(setting)}", columns, rows)


def _growth(report: Report) -> Grid:
    """Exponents, and from which length on a case is faster than SDPA."""
    setting = report["setting"]
    whole = [title for title in WHOLE if title in setting["passes"]]
    powers = [*whole, *(["memory"] if whole and setting["memory"] else [])]
    columns = ["case", *(f"power of N\n{title}" for title in powers)]
    columns += [f"faster than SDPA\nfrom N, {title}" for title in setting["passes"]]
    rows = [
        [
            name,
            *(times(report["exponents"][name][title]) for title in powers),
            *(found[title] or "–" for title in setting["passes"]),
        ]
        for name, found in report["crossovers"].items()
    ]
    return Grid(f"growth: {_sizes(setting)}", columns, rows)


def _ratios(timing: dict[str, Any] | None) -> list[str]:
    if timing is None:
        return ["–", "–", "–"]
    milliseconds, faster = 1e3 * timing["median"], timing["faster_than_sdpa"]
    return [
        f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}",
        times(timing["times_products"]),
        "–" if faster is None else f"{faster:.2f}×" if faster < 10 else f"{faster:.0f}×",
    ]


def times(ratio: float | None) -> str:
    """A ratio or a power, with two digits after the point."""
    return "–" if ratio is None else f"{ratio:.2f}"


def mebibytes(peak: dict[str, Any] | None) -> str:
    """Peak memory, or why there is none."""
    if peak is None:
        return "–"
    return str(peak["problem"] or "–") if peak["bytes"] is None else f"{peak['bytes'] / 2**20:,.0f}"
