import dataclasses
import json

import pytest
import torch

import lln
from lln.bench import cases, op

TINY = op.Setting(n=(32, 48), heads=2, repeats=1, threads=1, memory=False)


@pytest.fixture(scope="module")
def report():
    advanced = []
    result = op.run(TINY, advance=lambda: advanced.append(1))
    assert len(advanced) == TINY.steps
    return result


def test_every_row_has_its_ratios(report):
    assert [(row["n"], row["case"]) for row in report["results"]] == [
        (n, name) for n in (32, 48) for name in op.GROUPS["default"]
    ]
    times = {(row["n"], row["case"]): row for row in report["results"]}
    for row in report["results"]:
        for title in op.PASSES:
            products, sdpa = (
                times[row["n"], name][title]["median"] for name in ("products", "sdpa")
            )
            own = row[title]
            assert own["times_products"] == pytest.approx(own["median"] / products)
            assert own["faster_than_sdpa"] == pytest.approx(sdpa / own["median"])


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
    tables = op.tables(report)
    assert [table.row_count for table in tables] == [len(op.GROUPS["default"])] * 5


def test_products_are_always_measured_and_sdpa_on_demand():
    setting = dataclasses.replace(TINY, names=("lln",), n=(32,))
    report = op.run(setting)
    assert [row["case"] for row in report["results"]] == ["products", "lln"]
    assert report["results"][1]["forward"]["faster_than_sdpa"] is None
    assert op.tables(report)[0].row_count == 2


@pytest.mark.parametrize("dtype", op.DTYPES)
def test_every_dtype_runs(dtype):
    op.run(dataclasses.replace(TINY, n=(32,), dtype=dtype))


@pytest.mark.parametrize("name", lln.available())
def test_every_mechanism_can_be_measured(name):
    x = cases.inputs(2, 2, 40, 16)
    out = cases.find(name).make(2, 16, 40)(x.q, x.k, x.v)
    assert out.shape == x.grad.shape
    gradients = cases.call(cases.find(name), x, backward=True)()
    assert gradients[0].shape == x.q.shape
    assert all(gradient is not None for gradient in gradients[3:])  # of what it learns


@pytest.mark.parametrize("broken", [lambda q, k, v: v, lambda q, k, v: v * torch.nan])
def test_a_wrong_result_is_not_timed(monkeypatch, broken):
    wrong = dataclasses.replace(cases.REFERENCES["lln_given"], make=lambda *sizes: broken)
    monkeypatch.setitem(cases.REFERENCES, "lln_given", wrong)
    with pytest.raises(RuntimeError, match="lln_given differs from its formula"):
        op.run(TINY)


def test_saved_bytes_count_each_storage_once():
    x = cases.inputs(1, 2, 32, 16)
    size = x.q.numel() * 4
    assert op.saved_bytes(lambda: x.q * x.k + x.q * x.v) == 3 * size
    assert op.saved_bytes(lambda: (x.q * 2).exp() + x.k) == size  # the output of exp


def test_growth_is_the_exponent_of_a_power_law():
    assert op.slope([(n, 3 * n**1.7) for n in (2, 8, 64)]) == pytest.approx(1.7)
    assert op.slope([(8, 1.0)]) is None


def test_peaks_are_measured_and_drawn(tmp_path):
    setting = dataclasses.replace(TINY, names=("lln",), memory=True)
    steps = []
    report = op.run(setting, advance=lambda: steps.append(1))
    assert len(steps) == setting.steps
    assert [row["peak"]["problem"] for row in report["results"]] == [None] * 4
    assert report["exponents"].keys() == {"products", "lln"}
    op.save(report, tmp_path)
    assert json.loads((tmp_path / "op.json").read_text()) == json.loads(json.dumps(report))
    assert (tmp_path / "op.png").read_bytes().startswith(b"\x89PNG")


def test_inputs_depend_on_the_seed_alone():
    x, same, other = (cases.inputs(1, 2, 8, 4, seed=seed, std=3) for seed in (0, 0, 1))
    torch.testing.assert_close(x.q, same.q, atol=0, rtol=0)
    assert (x.q - other.q).abs().max() > 0
    assert x.q.requires_grad
