"""What came out of runs: a row for each, and mean ± spread where a mixer ran with several seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from lln.report.runs import Run


@dataclass(frozen=True)
class Quantity:
    """How a number is shown.

    Attributes:
        title: with its unit.
        form: of the number, as in a format string.
        scale: what the stored number is multiplied with.
        best: `min` or `max`, whichever end is better; None if neither is.
    """

    title: str
    form: str = ".4g"
    scale: float = 1.0
    best: Callable[..., str] | None = None

    def show(self, values: Sequence[float]) -> str:
        """One number, or mean ± standard deviation of several."""
        if not values:
            return "–"
        scaled = [value * self.scale for value in values]
        mean = format(fmean(scaled), self.form)
        return mean if len(scaled) == 1 else f"{mean} ± {format(stdev(scaled), self.form)}"


QUANTITIES = {
    "accuracy": Quantity("accuracy, %", ".2f", 100.0, max),
    "f1": Quantity("F1, %", ".2f", 100.0, max),
    "eval_loss": Quantity("evaluation loss", ".3f", best=min),
    "test_accuracy": Quantity("test accuracy, %", ".2f", 100.0, max),
    "test_loss": Quantity("test loss", ".3f", best=min),
    "best_step": Quantity("best step", ",.0f"),
    "steps": Quantity("steps", ",.0f"),
    "seconds_per_step": Quantity("ms per step", ",.1f", 1e3, min),
    "train_seconds": Quantity("training, minutes", ".1f", 1 / 60),
    "peak_memory_bytes": Quantity("peak memory, MiB", ",.0f", 2.0**-20, min),
}
"""By their names in a run's `final`, in the order of columns; others follow."""


@dataclass(frozen=True)
class Group:
    """The runs of one mixer, which differ in their seeds.

    Attributes:
        title: its label, after the name of the experiment where there are several.
        runs: by seed.
    """

    title: str
    runs: list[Run]

    def run_title(self, run: Run) -> str:
        """The name of one of the runs."""
        return f"{self.title} · seed {run.seed}"

    @property
    def seeds(self) -> str:
        """How many of them have final numbers."""
        done = sum(bool(run.final) for run in self.runs)
        return f"{done}" if done == len(self.runs) else f"{done} of {len(self.runs)}"

    def values(self, key: str) -> list[float]:
        """One final number of all runs that have it."""
        return [run.final[key] for run in self.runs if key in run.final]


@dataclass(frozen=True)
class Table:
    """The results of all groups.

    Attributes:
        columns: their titles.
        rows: title of a group → its lines, each with a text for each column.
    """

    columns: list[str]
    rows: dict[str, list[list[str]]]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The groups, in the order in which their first runs come."""
    several = len({run.name for run in runs}) > 1
    groups: dict[str, list[Run]] = {}
    for run in runs:
        title = f"{run.name} · {run.label}" if several else run.label
        groups.setdefault(title, []).append(run)
    return [Group(title, sorted(of, key=lambda run: run.seed)) for title, of in groups.items()]


def final_keys(groups: Sequence[Group]) -> list[str]:
    """The names of what came out of any run."""
    found = {key: None for group in groups for run in group.runs for key in run.final}
    return [key for key in QUANTITIES if key in found] + [k for k in found if k not in QUANTITIES]


def quantity(key: str) -> Quantity:
    """How the final number `key` is shown."""
    return QUANTITIES.get(key, Quantity(key.replace("_", " ")))


def tabulate(groups: Sequence[Group]) -> Table:
    """The table of all groups."""
    keys = final_keys(groups)
    rows: dict[str, list[list[str]]] = {}
    for group in groups:
        lines = rows[group.title] = []
        if len(group.runs) > 1:
            means = [quantity(key).show(group.values(key)) for key in keys]
            lines.append([f"{group.seeds} seeds", "", "", *means])
        for run in group.runs:
            size = "–" if run.parameters is None else f"{run.parameters:,}"
            numbers = [quantity(k).show([run.final[k]] if k in run.final else []) for k in keys]
            lines.append([f"seed {run.seed}", run.status, size, *numbers])
    return Table(["seed", "status", "parameters", *(quantity(key).title for key in keys)], rows)
