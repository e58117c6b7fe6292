"""Runs of the Long Range Arena side by side, in the layout of the paper's Tables 4 and 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lln.report.results import Quantity
from lln.report.runs import Run

TASKS = {
    "text": "Text",
    "listops": "ListOps",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "image": "Image",
}
"""In the paper's order."""
BEYOND = {"pathx": "Path-X"}
"""Not in the paper's tables, nor in its average; shown where there are runs of it."""
SCORE = Quantity("score, %", ".2f", 100.0)
COSTS = {
    "train_seconds": Quantity("training time, s", ",.0f"),
    "peak_memory_bytes": Quantity("peak memory, MiB", ",.0f", 2.0**-20),
}


@dataclass(frozen=True)
class ArenaTable:
    """A table.

    Attributes:
        title: what its numbers are.
        columns: their titles.
        rows: a text for each column.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Method:
    """The runs of one mixer in one experiment: task → seed → run."""

    title: str
    runs: dict[str, dict[int, Run]]

    def values(self, task: str, key: str) -> list[float]:
        """One final number of a task, of all seeds that have it."""
        found = self.runs.get(task, {}).values()
        return [run.final[key] for run in found if key in run.final]

    def averages(self) -> list[float]:
        """Of the scores of all tasks, one for each seed that every task was run with."""
        scores = [
            {seed: run.final["test_accuracy"] for seed, run in of.items() if _is_tested(run)}
            for of in (self.runs.get(task, {}) for task in TASKS)
        ]
        return [
            fmean(by_seed[seed] for by_seed in scores)
            for seed in scores[0]
            if all(seed in by_seed for by_seed in scores)
        ]


def arena_tables(runs: Sequence[Run]) -> list[ArenaTable]:
    """Scores, then time, then memory; a dash where there is no finished run.

    Args:
        runs: of any kind; all but those of `lln lra` are left out.
    """
    methods = _methods([run for run in runs if run.kind == "lra"])
    if not methods:
        raise ValueError("none of these runs is of lln lra")
    shown = TASKS | {
        task: title
        for task, title in BEYOND.items()
        if any(task in method.runs for method in methods)
    }
    scores = ArenaTable(
        SCORE.title,
        ["method", *shown.values(), "average"],
        [
            [
                method.title,
                *(SCORE.show(method.values(task, "test_accuracy")) for task in shown),
                SCORE.show(method.averages()),
            ]
            for method in methods
        ],
    )
    costs = [
        ArenaTable(
            quantity.title,
            ["method", *shown.values()],
            [
                [method.title, *(quantity.show(method.values(task, key)) for task in shown)]
                for method in methods
            ],
        )
        for key, quantity in COSTS.items()
    ]
    return [scores, *costs]


def as_markdown(tables: Sequence[ArenaTable]) -> str:
    """All tables, each below its title."""
    return "\n".join(
        f"{table.title[0].upper()}{table.title[1:]}:\n\n"
        + "".join(
            f"| {' | '.join(line)} |\n"
            for line in (table.columns, ["---", *["---:"] * (len(table.columns) - 1)], *table.rows)
        )
        for table in tables
    )


def _methods(runs: Sequence[Run]) -> list[Method]:
    experiments = {_experiment(run): None for run in runs}
    methods: dict[str, Method] = {}
    for run in runs:
        name = f"{_experiment(run)} · " if len(experiments) > 1 else ""
        title, task = f"{name}{run.label}", str(run.config["task"])
        seeds = methods.setdefault(title, Method(title, {})).runs.setdefault(task, {})
        if run.seed in seeds:
            raise ValueError(
                f"there are two runs of {run.name} with {run.label} and seed {run.seed}: give the "
                "folder of one"
            )
        seeds[run.seed] = run
    return list(methods.values())


def _experiment(run: Run) -> str:
    """Its name, without the task."""
    return run.name.rpartition("/")[0]


def _is_tested(run: Run) -> bool:
    return "test_accuracy" in run.final
