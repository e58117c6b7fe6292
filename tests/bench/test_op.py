import dataclasses
import json

import pytest
import torch

import lln
from lln.bench import cases, op
from lln.bench.alone import Peak
from lln.bench.op_tables import markdown, tables
from lln.bench.references import REFERENCES

NAMES = ("naive", "lln_given", "lln", "lln_diag", "linformer")
TINY = op.Setting(
    names=NAMES, n=(64, 96), heads=2, repeats=1, threads=1, memory=False, gate=False, causal=True
)
MEASURED = ["products", "sdpa", *(name for name in NAMES if name != "linformer")]
MEASURED[-2:-2] = ["linformer"]  # in the order of the registry


@pytest.fixture(scope="module")
def report():
    advanced = []
    result = op.run(TINY, advance=lambda: advanced.append(1))
    assert len(advanced) == TINY.steps
    return result


def test_every_row_has_its_ratios(report):
    bidirectional = [name for name in cases.names() if name in MEASURED]
    causal = [f"{name}_causal" for name in bidirectional if name not in ("products", "linformer")]
    assert [(row["n"], row["case"]) for row in report["results"]] == [
        (n, name) for n in (64, 96) for name in (*bidirectional, *causal)
    ]
    times = {(row["n"], row["case"]): row for row in report["results"]}
    for (n, name), row in times.items():
        for title in op.WHOLE:
            own = row[title]
            peer = "sdpa_causal" if name.endswith("_causal") else "sdpa"
            products, sdpa = (times[n, other][title]["median"] for other in ("products", peer))
            assert own["times_products"] == pytest.approx(own["median"] / products)
            assert own["faster_than_sdpa"] == pytest.approx(sdpa / own["median"])
            if name.endswith("_causal"):
                base = times[n, name.removesuffix("_causal")][title]["median"]
                assert own["times_bidirectional"] == pytest.approx(own["median"] / base)
            else:
                assert "times_bidirectional" not in own


def test_crossovers_follow_from_the_ratios(report):
    for name, found in report["crossovers"].items():
        rows = {row["n"]: row for row in report["results"] if row["case"] == name}
        faster = [rows[n]["forward"]["faster_than_sdpa"] > 1 for n in (64, 96)]
        if name.startswith("sdpa"):
            assert found["forward"] is None
        elif not faster[1]:
            assert found["forward"] == "> 96"
        elif faster[0]:
            assert found["forward"] == "< 64"
        else:
            assert 64 <= int(found["forward"]) <= 96


def test_report_says_where_it_was_made(report):
    assert {
        "machine",
        "torch",
        "python",
        "lln",
        "commit",
        "date",
        "load_before",
        "setting",
    } <= report.keys()
    assert report["setting"]["threads"] == 1
    assert report["setting"]["dtype"] == "float32"
    json.dumps(report)


def test_tables_show_every_row(report):
    rows = len(report["results"]) // 2
    grids = tables(report)
    assert [len(grid.rows) for grid in grids] == [rows] * 4 + [len(report["decoding"]), rows]
    for grid in grids:
        assert {len(row) for row in grid.rows} == {len(grid.columns)}
        assert grid.rich().row_count == len(grid.rows)
    text = markdown(report)
    assert report["machine"]["processor"] in text
    assert text.count("| lln_diag |") == 4 + 2 + 1


def test_products_and_sdpa_are_always_measured():
    setting = dataclasses.replace(TINY, names=("elu",), n=(32,), causal=False, passes=("forward",))
    report = op.run(setting)
    assert [row["case"] for row in report["results"]] == ["products", "sdpa", "elu"]
    assert report["decoding"] == []
    assert all(row["forward"]["faster_than_sdpa"] for row in report["results"])
    assert "forward+backward" not in report["results"][0]


@pytest.mark.parametrize("dtype", op.DTYPES)
def test_every_dtype_runs(dtype):
    names = ("naive", "lln", "lln_diag")
    report = op.run(dataclasses.replace(TINY, names=names, n=(32,), dtype=dtype))
    assert {row["problem"] for row in report["results"]} == {None}


@pytest.mark.parametrize("name", lln.available())
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_every_mechanism_can_be_measured(name, causal):
    x = cases.inputs(2, 2, 40, 16)
    if causal and not cases.has_causal_form(name):
        with pytest.raises(ValueError, match=f"{name} has no causal form"):
            cases.find(f"{name}_causal")
        return
    case = cases.find(f"{name}_causal" if causal else name)
    assert case.label.startswith("causal ") is causal
    out = case.make(2, 16, 40)(x.q, x.k, x.v)
    assert out.shape == x.grad.shape
    gradients = cases.call(case, x, backward=True)()
    assert gradients[0].shape == x.q.shape
    assert all(gradient is not None for gradient in gradients[3:])  # of what it learns


def test_gradients_are_laid_out_like_their_tensors():
    x = cases.inputs(1, 2, 40, 16)
    for gradient in cases.call(cases.find("products"), x, backward=True)():
        assert gradient.is_contiguous()


@pytest.mark.parametrize("name", [n for n in cases.names() if cases.has_causal_form(n)])
def test_causal_cases_are_causal(name):
    x = cases.inputs(1, 2, 40, 16)
    attend = cases.find(f"{name}_causal").make(2, 16, 40)
    changed = [part.detach().clone() for part in x[:3]]
    for part in changed:
        part[:, :, 20:] = 5
    with torch.no_grad():
        before, after = attend(*x[:3]), attend(*changed)
    torch.testing.assert_close(after[:, :, :20], before[:, :, :20], rtol=0, atol=0)


@pytest.mark.parametrize("broken", [lambda *x: x[2], lambda *x: x[2] * torch.nan])
def test_what_is_red_has_no_speed(monkeypatch, broken, tmp_path):
    wrong = dataclasses.replace(REFERENCES["lln_given"], attend=broken)
    monkeypatch.setitem(REFERENCES, "lln_given", wrong)
    setting = dataclasses.replace(TINY, names=("lln_given", "elu"), n=(32,), gate=True)
    report = op.run(setting)
    assert report["red"].keys() == {"lln_given"}
    assert report["red"]["lln_given"].startswith("formula: ")
    cases_timed = {row["case"] for row in report["results"]}
    assert cases_timed == {"products", "sdpa", "elu", "sdpa_causal", "elu_causal"}
    assert tables(report)[-1].rows[0][0] == "lln_given"
    op.save(report, tmp_path)
    assert "formula: " in (tmp_path / "op.md").read_text()


def test_without_the_gate_everything_is_timed(monkeypatch):
    wrong = dataclasses.replace(REFERENCES["lln_given"], attend=lambda *x: x[2])
    monkeypatch.setitem(REFERENCES, "lln_given", wrong)
    report = op.run(dataclasses.replace(TINY, names=("lln_given",), n=(32,)))
    assert report["red"] == {}
    assert "lln_given" in {row["case"] for row in report["results"]}


def test_what_does_not_fit_is_a_value(monkeypatch, tmp_path):
    monkeypatch.setattr(
        op,
        "peak_memory",
        lambda cell: Peak(None, "time-out") if cell.case == "sdpa" else Peak(cell.n * 2**20),
    )
    setting = dataclasses.replace(TINY, names=("elu", "sdpa_blocks"), causal=False, memory=True)
    advanced = []
    report = op.run(setting, advance=lambda: advanced.append(1))
    assert len(advanced) == setting.steps
    problems = {(row["n"], row["case"]): row["problem"] for row in report["results"]}
    assert problems[64, "sdpa"] == problems[96, "sdpa"] == "time-out"
    assert problems[64, "sdpa_blocks"] is None
    assert problems[96, "sdpa_blocks"] == "takes N in multiples of 64"
    assert report["results"][-1]["forward"]["faster_than_sdpa"] is None
    assert report["crossovers"]["elu"]["forward"] is None
    assert report["exponents"]["elu"]["memory"] == pytest.approx(1)
    assert "time-out" in markdown(report)
    op.save(report, tmp_path)
    assert json.loads((tmp_path / "op.json").read_text()) == json.loads(json.dumps(report))
    assert (tmp_path / "op.png").read_bytes().startswith(b"\x89PNG")


def test_saved_bytes_count_each_storage_once():
    x = cases.inputs(1, 2, 32, 16)
    size = x.q.numel() * 4
    assert op.saved_bytes(lambda: x.q * x.k + x.q * x.v) == 3 * size
    assert op.saved_bytes(lambda: (x.q * 2).exp() + x.k) == size  # the output of exp


def test_inputs_depend_on_the_seed_alone():
    x, same, other = (cases.inputs(1, 2, 8, 4, seed=seed, std=3) for seed in (0, 0, 1))
    torch.testing.assert_close(x.q, same.q, atol=0, rtol=0)
    assert (x.q - other.q).abs().max() > 0
    assert x.q.requires_grad
