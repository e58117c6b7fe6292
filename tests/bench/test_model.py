import dataclasses
import json

import pytest
import torch
from typer.testing import CliRunner

from lln.bench import contract, model
from lln.bench.alone import Peak, Spent
from lln.bench.model_tables import markdown, tables
from lln.cli.app import app

SIZE = model.Size(1, 16, 2, 32, vocabulary=50)
MIXERS = ("softmax", "lln_diag+block_size=8", "elu")


def setting(**changes):
    same = {"mixers": MIXERS, "size": SIZE, "columns": model.subject("tiny", (16, 32, 64))[1]}
    return model.Setting(**(same | {"threads": 1, "gate": False} | changes))


@pytest.fixture
def quick(monkeypatch):
    """Costs that are known: softmax grows by N², and has no memory left at 64."""

    def peak(cell, timeout):
        full = cell.mixer == "softmax" and cell.n == 64
        size = 10**6 * cell.n * cell.batch
        return Peak(None, "out of memory") if full else Peak(1, total=size)

    def spent(cell, repeats):
        if cell.mixer == "elu" and cell.n == 64:
            return Spent(None, "time-out")
        power = 2 if cell.mixer == "softmax" else 1
        return Spent(0.01 * cell.n**power, calls=repeats)

    def in_turns(cells, repeats, budget, timeout):
        return {name: spent(cell, repeats) for name, cell in cells.items()}

    monkeypatch.setattr(model, "peak_memory", peak)
    monkeypatch.setattr(model, "time_in_turns", in_turns)


def test_out_of_memory_and_of_time_are_values(quick, tmp_path):
    advanced = []
    report = model.run(setting(), advance=lambda: advanced.append(1))
    assert len(advanced) == setting().steps
    rows = {(row["mixer"], row["n"]): row for row in report["results"]}
    assert len(rows) == 9
    assert rows["softmax", 64]["problem"] == "out of memory"
    assert rows["softmax", 64]["seconds"] is None
    assert rows["elu", 64] | {"problem": "time-out", "seconds": None} == rows["elu", 64]
    assert report["exponents"]["softmax"]["seconds"] == pytest.approx(2)
    assert report["exponents"]["lln_diag+block_size=8"] == pytest.approx({"seconds": 1, "bytes": 1})
    absolute, relative = tables(report)
    assert absolute.columns == ["", "Method", "16", "32", "64", "power of N\nfrom 16 on"]
    assert absolute.rows[0] == ["Memory [GB]", "softmax", "0.016", "0.032", "OOM", "1.00"]
    assert absolute.rows[3] == ["Time [sec/it]", "softmax", "2.56", "10.2", "OOM", "2.00"]
    assert absolute.rows[5] == ["Time [sec/it]", "elu", "0.16", "0.32", "time-out", "1.00"]
    assert relative.rows[4] == ["Time", "lln_diag+block_size=8", "0.06", "0.03", "–"]
    model.save(report, tmp_path)
    assert json.loads((tmp_path / "model.json").read_text()) == json.loads(json.dumps(report))
    assert (tmp_path / "model.md").read_text() == markdown(report)
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


def test_long_sequences_decide_how_cost_grows(quick):
    columns = model.subject("tiny", (16, 2048, 4096))[1]
    report = model.run(setting(mixers=("lln",), columns=columns))
    assert report["exponents"]["lln"]["seconds"] == pytest.approx(1)
    rows = [
        {"mixer": "lln", "n": n, "batch": 1, "seconds": max(n, 2048), "bytes": n}
        for n in (512, 2048, 4096)
    ]
    assert model._exponents(setting(), rows, "lln") == pytest.approx({"seconds": 1, "bytes": 1})


@pytest.mark.parametrize(("batch", "batches"), [(None, [32, 32, 32, 128, 256]), (3, [3] * 5)])
def test_the_long_range_arena(batch, batches, quick, tmp_path):
    size, columns = model.subject("lra", batch=batch)
    report = model.run(setting(size=size, columns=columns, mixers=("softmax", "lln_diag")))
    absolute, _ = tables(report)
    assert absolute.columns == ["", "Method", "TC", "LO", "RE", "PF", "IC"]  # and no power of N
    assert [row["batch"] for row in report["results"][::2]] == batches
    model.save(report, tmp_path)
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("classes", [0, 3])
def test_a_step_trains(mixer, classes):
    cell = model.StepCell(mixer, 24, 2, dataclasses.asdict(SIZE), classes, threads=1)
    step = cell.prepare()
    network, optimizer = step.args[:2]
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    assert len(optimizer.state) == len(before)  # before the step that is measured
    assert all(p.grad is None for p in network.parameters())
    tokens = step.args[2]
    assert tokens.shape == (2, 24)
    step()
    changed = [name for name, p in network.named_parameters() if not torch.equal(before[name], p)]
    assert len(changed) == len(before)
    network.eval()
    assert network(tokens).logits.shape == ((2, 3) if classes else (2, 24, 50))


def test_half_precision_is_autocast():
    cell = model.StepCell("lln", 8, 1, dataclasses.asdict(SIZE), dtype="bfloat16", threads=1)
    step = cell.prepare(small=True)
    seen = []
    step.args[0].encoder.layers[0].mixer.register_forward_hook(
        lambda module, args, out: seen.append(out.dtype)
    )
    step()
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in step.args[0].parameters()} == {torch.float32}


def test_one_cell_in_its_own_process():
    found = model.run(setting(mixers=("lln_diag",), columns=model.subject("tiny", (32,))[1]))
    (row,) = found["results"]
    assert row["problem"] is None
    assert row["seconds"] > 0
    assert row["calls"] == 5
    if row["bytes"] is None:
        pytest.skip("this system does not tell a process its peak memory")
    assert row["bytes"] < 100e6


def test_a_red_mixer_is_not_timed(quick, monkeypatch):
    monkeypatch.setattr(contract, "red", lambda name, device: "why" if name == "elu" else None)
    advanced = []
    report = model.run(setting(gate=True), advance=lambda: advanced.append(1))
    assert report["red"] == {"elu": "why"}
    assert {row["mixer"] for row in report["results"]} == set(MIXERS[:2])
    assert tables(report)[-1].rows == [["elu", "why"]]


def test_an_interrupted_run_goes_on(quick, tmp_path, monkeypatch):
    def interrupt(report):
        model.save(report, tmp_path)
        if len(report["results"]) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(model.record, "free_memory", lambda: 0)  # so that each is a group

    with pytest.raises(KeyboardInterrupt):
        model.run(setting(), folder=tmp_path, keep=interrupt)
    # What there is can be looked at: a row has its cells, and nothing where there is none yet.
    absolute = tables(json.loads((tmp_path / "model.json").read_text()))[0]
    assert absolute.rows[3][:5] == ["Time [sec/it]", "softmax", "2.56", "10.2", "–"]
    assert absolute.rows[4][:5] == ["Time [sec/it]", MIXERS[1], "0.16", "–", "–"]

    measured = []
    original = model.peak_memory
    monkeypatch.setattr(
        model, "peak_memory", lambda cell, **how: measured.append(cell) or original(cell, **how)
    )
    kept = []
    report = model.run(
        setting(), folder=tmp_path, keep=lambda report: kept.append(len(report["results"]))
    )
    assert len(measured) == 5
    assert kept == [5, 6, 7, 8, 9]  # never less than there was
    assert report["results"] == model.run(setting())["results"]
    assert len(measured) == 5 + 9

    # Another setting is another run; so is one that had come to its end, and a damaged file.
    def cells_measured(**changes):
        measured.clear()
        model.run(setting(**changes), folder=tmp_path)
        return len(measured)

    assert cells_measured() == 5
    assert cells_measured(repeats=2) == 9
    model.save(report, tmp_path)
    assert cells_measured() == 9
    for damaged in ("{", "[]", "null"):
        (tmp_path / "model.json").write_text(damaged)
        assert cells_measured() == 9


def test_as_many_take_turns_as_memory_has_room_for(quick, monkeypatch):
    groups = []
    original = model.time_in_turns
    monkeypatch.setattr(
        model,
        "time_in_turns",
        lambda cells, **how: groups.append(set(cells)) or original(cells, **how),
    )
    columns = model.subject("tiny", (32, 64))[1]
    softmax, diag, elu = MIXERS
    for room, expected in [
        (1e9, [{softmax, diag, elu}, {diag, elu}]),  # softmax has no memory at 64, and no time
        (model.KEPT * 2 * 32e6, [{softmax, diag}, {elu}, {diag}, {elu}]),
        (None, [{softmax}, {diag}, {elu}, set(), {diag}, {elu}]),
    ]:
        groups.clear()
        monkeypatch.setattr(model.record, "free_memory", lambda room=room: room)
        model.run(setting(columns=columns))
        assert groups == expected, room
    groups.clear()  # the memory of a GPU is another one
    monkeypatch.setattr(model.record, "free_memory", lambda: 1e9)
    monkeypatch.setattr(model.record, "environment", lambda device: {})
    model.run(setting(columns=columns, device="cuda"))
    assert groups == [{softmax}, {diag}, {elu}, set(), {diag}, {elu}]


def test_command(quick, tmp_path):
    arguments = ["bench", "model", "--model", "1x16x2", "--mixers", "softmax,lln", "--n", "16,64"]
    result = CliRunner().invoke(app, [*arguments, "--no-gate", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "OOM" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "model.md", "model.png"}
    (tmp_path / "file").touch()
    blocked = CliRunner().invoke(app, [*arguments, "--no-gate", "--out", str(tmp_path / "file")])
    assert blocked.exit_code != 0
    assert "cannot write '--out'" in blocked.output


def test_sizes():
    assert model.subject("base")[0] == model.Size(12, 768, 12, 3072, 50265)
    assert list(model.subject("base")[1]) == ["512", "1024", "2048", "4096", "8192", "16384"]
    assert model.subject("4x256x8", (64,), 3) == (
        model.Size(4, 256, 8, 1024),
        {"64": model.Task("64", 64, 3, 0)},
    )
