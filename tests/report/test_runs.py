"""Run folders as they are read: whole, unfinished, damaged, resumed."""

import json
from statistics import fmean, stdev

import pytest

from lln.report import find_runs, read_run
from lln.report.charts import chart_data, sections
from lln.report.curves import Curve
from lln.report.results import group_runs, tabulate
from report.run_folders import write_run


def lines(folder, kind):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def append(folder, text):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "lln_diag-seed0")


def test_curves_are_what_was_logged(folder):
    run = read_run(folder)
    rows = lines(folder, "train")
    assert run.train["loss"] == Curve(
        [row["step"] for row in rows],
        [row["seconds"] for row in rows],
        [row["loss"] for row in rows],
    )
    assert run.evaluation["accuracy"].values == [r["accuracy"] for r in lines(folder, "eval")]
    assert set(run.evaluation) == {"loss", "accuracy"}
    assert (run.label, run.seed, run.status, run.notes) == ("lln_diag", 0, "finished", ())


def test_attention_is_the_mean_and_the_range_over_heads(folder):
    run = read_run(folder)
    rows = lines(folder, "attention")
    for layer in ("all", "0", "2"):
        heads = [
            [head["entropy"] for head in row["rows"] if layer in ("all", str(head["layer"]))]
            for row in rows
        ]
        assert run.attention["entropy"][layer] == Curve(
            [row["step"] for row in rows],
            [row["seconds"] for row in rows],
            [fmean(values) for values in heads],
            [min(values) for values in heads],
            [max(values) for values in heads],
        )
    assert run.layers == {str(i): f"encoder.layers.{i}.mixer" for i in range(3)}


def test_heads_without_a_number_do_not_count(folder):
    heads = [{"layer": 0, "head": i, "gap": gap} for i, gap in enumerate((0.2, None, 0.4))]
    line = {"kind": "attention", "step": 9999, "seconds": 1.0, "rows": heads}
    append(folder, json.dumps(line) + "\n")
    run = read_run(folder)
    assert run.attention["gap"]["0"].values[-1] == pytest.approx(0.3)
    assert run.attention["gap"]["1"].values[-1] is None
    assert run.attention["entropy"]["0"].values[-1] is None


def test_a_mixer_without_alpha_has_no_curve_of_it(tmp_path):
    run = read_run(write_run(tmp_path / "softmax-seed0", "softmax"))
    assert set(run.attention) == {"temperature", "entropy", "gap"}


@pytest.mark.parametrize("rest", [b'{"kind": "train", "st', b"\x00\x00\x00\xff", b"12", b"{}"])
def test_a_line_that_was_cut_off(folder, rest):
    whole = read_run(folder)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(rest)
    run = read_run(folder)
    assert run.train == whole.train
    (note,) = run.notes
    assert note == "left out 1 line of metrics.jsonl, cut off as when a run is killed"


def test_a_resumed_run_repeats_steps(folder):
    before = read_run(folder).train["loss"]
    rows = [
        {"kind": "train", "step": step, "seconds": 500.0 + step, "loss": -float(step)}
        for step in (200, 210)
    ]
    append(folder, "".join(json.dumps(row) + "\n" for row in rows))
    after = read_run(folder).train["loss"]
    assert after.steps == [*before.steps[:19], 200, 210]
    assert after.values == [*before.values[:19], -200.0, -210.0]


def test_a_run_that_goes_on(tmp_path):
    run = read_run(write_run(tmp_path / "run", status="running"))
    assert run.final == {}
    assert run.notes == ("still running, or interrupted; the last entry is of step 400",)


def test_a_run_that_failed(tmp_path):
    assert read_run(write_run(tmp_path / "run", status="failed")).notes == (
        "failed after step 400",
    )


def test_a_run_that_has_just_begun(tmp_path):
    folder = write_run(tmp_path / "run", status="running")
    (folder / "metrics.jsonl").unlink()
    run = read_run(folder)
    assert (run.train, run.evaluation, run.attention) == ({}, {}, {})
    assert "there is no metrics.jsonl yet" in run.notes


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_run_that_diverged(folder, loss):
    append(folder, json.dumps({"kind": "train", "step": 410, "seconds": 41, "loss": loss}))
    run = read_run(folder)
    assert run.train["loss"].values[-1] is None
    assert run.notes == ("the training loss is not a finite number at step 410",)


def test_runs_are_found_once_and_in_order(tmp_path):
    labels = ["lln-seed0", "lln-seed1", "lln+a=1-seed0", "softmax-seed0"]
    for name in reversed(labels):
        write_run(tmp_path / "a" / name, steps=10)
    found = find_runs([tmp_path / "a"])
    assert [folder.name for folder in found] == labels
    assert find_runs([tmp_path / "a" / "softmax-seed0", tmp_path]) == [found[3], *found[:3]]


def test_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        find_runs([tmp_path / "none"])
    with pytest.raises(ValueError, match="holds no run"):
        find_runs([tmp_path])
    for content, message in (
        ("{", "cannot read"),
        ("[]", "holds no object"),
        ('{"name": "x"}', "lacks label, seed"),
    ):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            read_run(tmp_path)


def test_long_curves_are_thinned_and_keep_their_spikes():
    values = [float(i % 7) for i in range(10_001)]
    values[1234], values[8000], values[500:520] = 1e6, -1e6, [None] * 20
    curve = Curve(list(range(10_001)), [i / 10 for i in range(10_001)], values, values, values)
    thin = curve.thinned()
    assert 1500 < len(thin.values) <= 2000
    assert (thin.steps[0], thin.steps[-1]) == (0, 10_000)
    assert {1234, 8000} <= set(thin.steps)
    assert thin.steps == sorted(set(thin.steps))
    assert None in thin.values  # a gap stays one
    assert thin.values == [values[step] for step in thin.steps] == thin.low == thin.high
    assert thin.seconds == [step / 10 for step in thin.steps]
    short = Curve([1], [0.1], [2.0])
    assert short.thinned() is short


def test_mean_and_spread_over_the_seeds_that_ended(tmp_path):
    for seed, status in enumerate(("finished", "finished", "finished", "running")):
        write_run(tmp_path / f"elu-seed{seed}", "elu", seed=seed, status=status)
    write_run(tmp_path / "softmax-seed0", "softmax")
    runs = [read_run(folder) for folder in find_runs([tmp_path])]
    table = tabulate(group_runs(runs[::-1]))
    assert list(table.rows) == ["softmax", "elu"]
    lines = table.rows["elu"]
    losses = [run.final["eval_loss"] for run in runs[:3]]
    place = table.columns.index("evaluation loss")
    assert [line[place] for line in lines] == [
        f"{fmean(losses):.3f} ± {stdev(losses):.3f}",
        *(f"{loss:.3f}" for loss in losses),
        "–",
    ]
    assert lines[0][0] == "3 of 4 seeds"
    assert [line[1] for line in lines[1:]] == ["finished"] * 3 + ["running"]


def test_units(tmp_path):
    run = read_run(write_run(tmp_path / "run", speed=0.125, steps=480))
    table = tabulate(group_runs([run]))
    cells = dict(zip(table.columns, table.rows["lln_diag"][0], strict=True))
    assert cells["training, minutes"] == "1.0"
    assert cells["ms per step"] == "125.0"
    assert cells["peak memory, MiB"] == f"{5e8 / 2**20:,.0f}"
    assert cells["accuracy, %"] == f"{100 * run.final['accuracy']:.2f}"
    assert cells["parameters"] == "1,234,567"


def legend(tmp_path, *labels, name="x"):
    runs = [read_run(write_run(tmp_path / name / label, label, name=name)) for label in labels]
    return chart_data(group_runs(runs))["groups"]


def test_a_mixer_has_its_colour_on_every_page(tmp_path):
    names = ["softmax", "lln", "lln_diag", "elu", "block_diag", "performer"]
    together = legend(tmp_path / "a", *names)
    alone = [legend(tmp_path / name, name)[0] for name in names]
    assert together == alone
    assert len({group["color"] for group in together}) == len(names)


def test_more_mixers_than_colours_and_several_experiments_differ(tmp_path):
    groups = legend(tmp_path / "a", *(f"mixer{i}" for i in range(15)))
    assert len({(group["color"], group["dash"]) for group in groups}) == 15
    one = read_run(write_run(tmp_path / "one", "lln", name="one"))
    other = read_run(write_run(tmp_path / "other", "lln", name="other"))
    first, second = chart_data(group_runs([one, other]))["groups"]
    assert (first["title"], second["title"]) == ("one · lln", "other · lln")
    assert first["color"] == second["color"]
    assert first["dash"] != second["dash"]


def test_figures_are_those_that_have_numbers(tmp_path):
    run = read_run(write_run(tmp_path / "a"))
    keys = [chart.key for charts in sections([run]).values() for chart in charts]
    assert "train-loss_scale" not in keys
    scaled = read_run(write_run(tmp_path / "b", loss_scale=True))
    assert "train-loss_scale" in [
        chart.key for charts in sections([run, scaled]).values() for chart in charts
    ]


def test_other_metrics_have_figures_and_bookkeeping_has_none(folder):
    row = {"kind": "eval", "step": 500, "seconds": 50, "f1": 0.5, "exact_match": 0.4}
    append(folder, json.dumps(row | {"epoch": 1.0, "runtime": 2.0, "steps_per_second": 3.0}))
    titles = [chart.title for chart in sections([read_run(folder)])["Loss and metrics"]]
    assert titles == ["Training loss", "Evaluation loss", "Accuracy, %", "F1, %", "Exact match"]
