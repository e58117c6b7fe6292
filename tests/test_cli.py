import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import lln
from lln import cli
from lln.bench import overview
from lln.bench.alone import Peak
from lln.cli import app as commands
from lln.cli import bench, bench_model, benchmarking
from lln.matching.calibration import load


def run(*args):
    return CliRunner().invoke(commands.app, args)


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"lln {lln.__version__}\n")


@pytest.mark.parametrize("args", [(), ("--help",), ("bench",), ("bench", "op", "--help")])
def test_help_shows_an_example(args):
    result = run(*args)
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert "Usage" in result.stdout


def test_list_is_the_registry():
    table, data = run("list"), run("list", "--json")
    assert table.exit_code == data.exit_code == 0
    rows = json.loads(data.stdout)
    assert [row["name"] for row in rows] == lln.available()
    for row in rows:
        assert row["name"] in table.stdout
        assert set(row) == {
            "name",
            "kind",
            "paper",
            "complexity",
            "causal",
            "row_stochastic",
            "options",
            "parameters",
            "summary",
        }


def test_bench_op(tmp_path):
    out = tmp_path / "new" / "folder"
    sizes = ("--n", "32,48", "--n", "64", "--heads", "2", "--repeats", "1", "--threads", "1")
    result = run("bench", "op", *sizes, "--attn", "lln,authors", "--no-memory", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "N=48" in result.stdout
    assert {p.name for p in out.iterdir()} == {"op.json", "op.md", "op.png"}
    report = json.loads((out / "op.json").read_text())
    assert report["setting"]["n"] == [32, 48, 64]
    names = ["products", "sdpa", "authors", "lln"]
    assert [row["case"] for row in report["results"]] == names * 3


def test_red_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "lln.bench.contract.red", lambda name, **_: "why" if name == "elu" else None
    )
    args = ("--n", "32", "--heads", "1", "--repeats", "1", "--attn", "elu,relu", "--no-memory")
    result = run("bench", "op", *args, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "relu" in result.stdout
    assert "why" in result.stdout
    assert result.stderr.endswith("error: not timed, as the contract is broken: elu\n")
    assert run("bench", "op", *args, "--no-gate", "--out", str(tmp_path)).exit_code == 0


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(bench, "installed", lambda: [])
    result = run("bench", "op", "--attn", "peer_performer")
    assert result.exit_code == 2
    expected = "error: '--attn' peer_performer needs a package: pip install 'lln[peers]'\n"
    assert result.stderr == expected


@pytest.mark.parametrize(("load", "noted"), [(0.0, False), (None, False), (1e3, True)])
def test_a_busy_machine_is_noted(load, noted, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarking, "load", lambda: load)
    args = ("--n", "32", "--heads", "1", "--repeats", "1", "--attn", "lln", "--no-memory")
    args = (*args, "--out", str(tmp_path))
    assert ("this machine is busy" in run("bench", "op", *args).stderr) is noted


def test_overview(tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "peak_memory", lambda cell: Peak(2**20))
    result = run("bench", "overview", "--n", "32", "--threads", "1", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} == {"overview.png", "overview.json"}


def test_calibrate(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "LENGTHS", (16, 64))
    out = tmp_path / "calibration.json"
    result = run("calibrate", "--dims", "4,8", "--draws", "1", "--out", str(out))
    assert result.exit_code == 0, result.output
    found = load(out)
    assert list(found) == [4, 8]
    assert tuple(found[8].lengths) == (16, 64)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("bench", "op", "--n", "0"), ("'--n'", "positive whole numbers")),
        (("bench", "op", "--n", "many"), ("'--n'", "positive whole numbers")),
        (("bench", "op", "--attn", "lln,nonsense"), ("'--attn'", "'nonsense'", "lln_given")),
        (("bench", "op", "--dtype", "int8"), ("'--dtype'", "'int8'", "bfloat16")),
        (("bench", "op", "--device", "abacus"), ("'--device'", "'abacus'", "cpu")),
        (("bench", "op", "--heads", "0"), ("'--heads'", "1")),
        (("bench", "op", "--passes", "sideways"), ("'--passes'", "'sideways'", "decoding")),
        (("bench", "decode"), ("'decode'", "op")),
        (("bench", "model", "--model", "huge"), ("'--model'", "'huge'", "base", "4x256x4")),
        (("bench", "model", "--model", "2x10x3"), ("'--model'", "10", "3 heads")),
        (("bench", "model", "--model", "lra", "--n", "8"), ("lra", "'--n'")),
        (("bench", "model", "--mixers", "lln+blok=1"), ("'lln'", "'blok'", "matching")),
        (("bench", "model", "--mixers", "nonsense"), ("'nonsense'", "lln_diag")),
        (("bench", "long", "--heads-at-once", "3"), ("heads_at_once", "heads=8")),
        (("bench", "long", "--attn", "nonsense"), ("'--attn'", "'nonsense'", "lln_diag")),
        (("bench", "op", "--heads", "few"), ("'--heads'", "integer")),
        (("bench", "op", "--nonsense"), ("--nonsense",)),
        (("bench", "nonsense"), ("'nonsense'", "op")),
        (("nonsense",), ("'nonsense'", "list, calibrate, bench")),
        (("bench", "overview", "--n", "-1"), ("'--n'", "positive whole numbers")),
        (("calibrate", "--dims", "8;16"), ("'--dims'", "positive whole numbers")),
        (("calibrate", "--seed", "-1"), ("'--seed'", "0")),
    ],
)
def test_a_mistake_is_one_line(args, parts):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "folder"
    args = ("--n", "32", "--heads", "1", "--repeats", "1", "--attn", "lln", "--no-memory")
    result = run("bench", "op", *args, "--out", str(out))
    assert result.exit_code == 2
    assert (
        result.stderr.splitlines(keepends=True)[-1]
        == f"error: cannot write '--out' {out}: Not a directory\n"
    )


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_line_says_so(missing, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "lln.cli.app")
    for name in [m for m in sys.modules if m.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    expected = "error: the command line needs typer and rich: pip install 'lln[cli]'\n"
    assert capsys.readouterr() == ("", expected)


def test_without_matplotlib_the_overview_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("bench", "overview")
    assert result.exit_code == 2
    assert result.stderr == "error: the picture needs matplotlib: pip install 'lln[bench]'\n"


def test_without_transformers_the_models_say_so(monkeypatch):
    monkeypatch.setattr(bench_model, "find_spec", lambda name: None)
    result = run("bench", "model")
    assert result.exit_code == 2
    expected = "error: lln bench model needs transformers: pip install 'lln[train]'\n"
    assert result.stderr == expected


def test_the_package_needs_torch_alone():
    benches = "contract, curves, figure, long, model, model_tables, op, op_tables, overview"
    modules = ", ".join(f"lln.bench.{name}" for name in benches.split(", "))
    modules = f"lln, lln.cli, lln.instruments, {modules}"
    blocked = "('typer', 'rich', 'matplotlib', 'scipy', 'transformers')"
    script = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import {modules}"
    subprocess.run([sys.executable, "-c", script], check=True)
