"""Tables of the Long Range Arena, and the picture of fixed α = β, from made-up runs."""

import json

import pytest
from typer.testing import CliRunner

from lln.cli.app import app
from lln.report import find_runs, read_run
from lln.report.arena import arena_tables, as_markdown
from lln.report.sweep import sweep
from report.run_folders import write_run

TASKS = ("text", "listops", "retrieval", "pathfinder", "image")


def write_tested(folder, label, task, accuracy, *, seed=0, name="lra-x", status="finished"):
    """A run with a score, 100 s and 64 MiB."""
    title = f"{name}/{task}"
    run = write_run(folder, label, seed=seed, name=title, kind="lra", layers=0, status=status)
    head = json.loads((run / "run.json").read_text())
    head["config"]["task"] = task
    if status == "finished":
        head["final"] |= {
            "test_accuracy": accuracy,
            "train_seconds": 100.0,
            "peak_memory_bytes": 2**26,
        }
    (run / "run.json").write_text(json.dumps(head))


@pytest.fixture
def runs(tmp_path):
    """Softmax on five tasks and two seeds, lln on two tasks and Path-X."""
    for seed in (0, 1):
        for place, task in enumerate(TASKS):
            folder = tmp_path / f"lra-x/{task}/softmax-seed{seed}"
            write_tested(folder, "softmax", task, 0.5 + 0.01 * place + 0.02 * seed, seed=seed)
    for task, accuracy in (("text", 0.0), ("pathx", 0.505)):
        write_tested(tmp_path / f"lra-x/{task}/lln-seed0", "lln", task, accuracy)
    write_tested(tmp_path / "lra-x/image/lln-seed0", "lln", "image", 0.4, status="running")
    write_run(tmp_path / "other/softmax-seed0", "softmax", layers=0)
    return tmp_path


def test_tables(runs):
    score, time, memory = arena_tables([read_run(folder) for folder in find_runs([runs])])
    assert score.columns == [
        *("method", "Text", "ListOps", "Retrieval", "Pathfinder", "Image", "Path-X", "average")
    ]
    rows = {row[0]: row[1:] for row in score.rows}
    assert rows["softmax"] == [
        *("51.00 ± 1.41", "52.00 ± 1.41", "53.00 ± 1.41", "54.00 ± 1.41", "55.00 ± 1.41"),
        *("–", "53.00 ± 1.41"),
    ]
    assert rows["lln"] == ["0.00", "–", "–", "–", "–", "50.50", "–"]
    assert {row[0]: row[1] for row in time.rows} == {"softmax": "100 ± 0", "lln": "100"}
    assert {row[0]: row[1] for row in memory.rows} == {"softmax": "64 ± 0", "lln": "64"}
    lines = as_markdown([score, time, memory]).splitlines()
    assert "| lln | 0.00 | – | – | – | – | 50.50 | – |" in lines
    assert lines[0] == "Score, %:"


def test_an_average_takes_the_seeds_that_every_task_has(runs):
    write_tested(runs / "lra-x/text/softmax-seed7", "softmax", "text", 0.9, seed=7)
    score = arena_tables([read_run(folder) for folder in find_runs([runs])])[0]
    assert {row[0]: row[-1] for row in score.rows}["softmax"] == "53.00 ± 1.41"


def test_experiments_are_told_apart_and_the_same_run_is_refused(runs):
    write_tested(runs / "lra-y/text/lln-seed0", "lln", "text", 0.7, name="lra-y")
    found = [read_run(folder) for folder in find_runs([runs])]
    rows = {row[0]: row[1] for row in arena_tables(found)[0].rows}
    assert (rows["lra-x · lln"], rows["lra-y · lln"]) == ("0.00", "70.00")
    write_tested(runs / "copy", "lln", "text", 0.7, name="lra-y")
    with pytest.raises(ValueError, match="two runs of lra-y/text with lln and seed 0"):
        arena_tables([read_run(folder) for folder in find_runs([runs])])


def test_the_command(runs, tmp_path):
    done = CliRunner().invoke(app, ["lra", "table", str(runs), "--out", str(tmp_path / "t.md")])
    assert done.exit_code == 0, done.output
    assert "50.50" in done.stdout
    assert "…" not in done.stdout
    assert "| method | Text |" in (tmp_path / "t.md").read_text()
    none = CliRunner().invoke(app, ["lra", "table", str(runs / "other")])
    assert none.stderr.strip() == "error: none of these runs is of lln lra"
    wrong = CliRunner().invoke(app, ["lra", "tables"])
    assert wrong.stderr.startswith("error: 'tables' is not one of the commands listops, text")


@pytest.fixture
def fixed(tmp_path):
    """Runs with α = β of 1 and 2, of two seeds each, one that matches, and softmax."""
    for label, matching, accuracy in (
        ("lln_diag+matching=1", 1, 0.6),
        ("lln_diag+matching=2.0", 2.0, 0.8),
        ("lln_diag", "entropy", 0.81),
        ("softmax", None, 0.82),
    ):
        for seed in (0, 1):
            run = write_run(
                tmp_path / f"{label}-seed{seed}", label, seed=seed, name="vit", kind="vit", layers=2
            )
            head = json.loads((run / "run.json").read_text())
            head["final"]["test_accuracy"] = accuracy + 0.02 * seed
            head["config"]["options"] = {} if matching is None else {"matching": matching}
            (run / "run.json").write_text(json.dumps(head))
    return tmp_path


def test_accuracy_by_fixed_values_beside_those_that_were_found(fixed):
    report = sweep([read_run(folder) for folder in find_runs([fixed])])
    (curve,) = report["mixers"]
    assert (report["score"], curve["mixer"]) == ("test_accuracy", "lln_diag")
    points = {point["value"]: point["scores"] for point in curve["fixed"]}
    assert points == {1: [0.6, 0.62], 2.0: [0.8, 0.8200000000000001]}
    assert [run["score"] for run in curve["matched"]] == [0.81, 0.8300000000000001]
    alpha = curve["matched"][0]["alpha"]
    assert alpha["low"] < alpha["mean"] < alpha["high"] <= 2.2
    assert curve["matched"][0]["beta"]["mean"] == pytest.approx(2.1)


def test_the_picture(fixed, tmp_path):
    done = CliRunner().invoke(app, ["sweep", str(fixed), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out/sweep.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out/sweep.json").read_text())["experiment"] == "vit"
    none = CliRunner().invoke(app, ["sweep", str(fixed / "softmax-seed0")])
    assert "no finished run with a fixed α = β" in none.stderr
