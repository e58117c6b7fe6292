import json

import pytest

from lln.bench import overview
from lln.bench.alone import Peak

TINY = overview.Setting(n=(64, 128), heads=1, threads=1, repeats=1, rows=16)


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            overview,
            "peak_memory",
            lambda cell: Peak(None, "time-out") if cell.n == 128 else Peak(cell.n * 2**12),
        )
        advanced = []
        result = overview.run(TINY, advance=lambda: advanced.append(1))
    assert len(advanced) == TINY.steps
    return result


def test_concentration_of_both_attentions_is_alike(report):
    for row in report["results"]:
        assert 0 < row["entropy_bits"]["softmax"] < 7
        assert abs(row["entropy_bits"]["softmax"] - row["entropy_bits"]["lln"]) < 1
        assert all(0 < gap < 1 for gap in row["spectral_gap"].values())


def test_speed_up_is_against_sdpa(report):
    for row in report["results"]:
        assert row["speed_up"]["sdpa"] == 1
        expected = row["seconds"]["sdpa"] / row["seconds"]["lln"]
        assert row["speed_up"]["lln"] == pytest.approx(expected)


def test_tables_and_files(report, tmp_path):
    cost, concentration = overview.tables(report)
    assert cost.row_count == concentration.row_count == 2
    assert "time-out" in list(cost.columns[-1].cells)
    overview.save(report, tmp_path)
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "overview.json").read_text()) == json.loads(json.dumps(report))
