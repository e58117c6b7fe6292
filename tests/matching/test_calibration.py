import json
import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from lln.attention import LLNAttention, SoftmaxAttention
from lln.instruments import entropy, matrix_of, spectral_gap
from lln.matching import Matching, calibration_for, width
from lln.matching import curve as curve_of
from lln.matching.calibration import (
    HEAD_DIMS,
    LENGTHS,
    SCORE_STD_MIN,
    SCORE_STD_POINTS,
    SHIPPED,
    calibrate,
    grid,
    load,
    save,
)


def test_common_head_dimensions_ship():
    assert tuple(load(SHIPPED)) == HEAD_DIMS == (8, 16, 32, 64, 80, 96, 128, 256)
    for found in load(SHIPPED).values():
        assert tuple(found.lengths) == LENGTHS


@pytest.mark.parametrize("d", HEAD_DIMS)
def test_maps_rise(d):
    found = calibration_for(d)
    for rows in (found.variance, found.entropy):
        for row in rows:
            assert len(row) == SCORE_STD_POINTS
            assert all(a < b for a, b in pairwise(row))


def test_the_shipped_calibration_is_what_the_procedure_finds():
    found, shipped = calibrate(16, (64,), draws=8), calibration_for(16)
    row = shipped.lengths.index(64)
    for name in ("variance", "entropy"):
        assert_close(
            torch.tensor(getattr(found, name)[0]),
            torch.tensor(getattr(shipped, name)[row]),
            rtol=0.03,
            atol=0,
        )
    assert_close(
        torch.tensor(found.linear[0]), torch.tensor(shipped.linear[row]), rtol=0.03, atol=0
    )


def test_calibration_follows_its_seed():
    once, again, other = (calibrate(8, (16,), draws=1, seed=s) for s in (1, 1, 2))
    assert once == again
    assert once != other


def test_width_interpolates_and_goes_on_in_proportion():
    matching = Matching()
    curve = curve_of(matching, 64)
    found = calibration_for(64)
    stds = grid(SCORE_STD_MIN, SCORE_STD_POINTS).float()[None]
    for length, row in zip(found.lengths, found.entropy, strict=True):
        assert_close(width(curve, stds, torch.tensor([[math.log(length)]]))[0], torch.tensor(row))
    between = width(curve, stds[:, 3:4] * 2**0.125, torch.tensor([[math.log(512)]]))
    corners = [row[i] for row in (found.entropy[2], found.entropy[3]) for i in (3, 4)]
    assert min(corners) < between.item() < max(corners)
    assert_close(between.log().item(), sum(map(math.log, corners)) / 4, rtol=1e-5, atol=0)
    edge = width(curve, stds[:, -1:], torch.tensor([[math.log(64)]]))
    assert_close(width(curve, 10 * stds[:, -1:], torch.tensor([[math.log(64)]])), 10 * edge)
    last, before, beyond, short, shortest = (
        width(curve, stds, torch.tensor([[math.log(n)]])).log()
        for n in (LENGTHS[-1], LENGTHS[-2], LENGTHS[-1] ** 2 / LENGTHS[-2], 2, LENGTHS[0])
    )
    assert_close(beyond, 2 * last - before, rtol=1e-4, atol=1e-4)
    assert torch.equal(short, shortest)


def test_the_paper_fit_is_eq_10():
    curve = curve_of(Matching(target="linear", fit=(0.25, -0.5)), 64)
    score_std = torch.tensor([[1.0, 2.0]])
    expected = ((score_std**2 + 0.5) / 0.25).sqrt()
    assert_close(width(curve, score_std, torch.zeros(1, 1)), expected)


def test_the_fit_at_d_64_is_close_to_the_authors():
    """a = 0.1486, b = −0.3549 in their code."""
    a, b = calibration_for(64).linear[LENGTHS.index(1024)]
    assert 0.12 < a < 0.17
    assert -0.4 < b < -0.2


def test_other_head_dimensions_are_measured_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("lln.matching.calibration.LENGTHS", (16, 64))
    monkeypatch.setattr("lln.matching.calibration.FIRST_USE_DRAWS", 1)
    calibration_for.cache_clear()
    first = calibration_for(5)
    assert "head dimension 5" in caplog.text
    file = tmp_path / "lln" / "calibration-5.json"
    assert set(json.loads(file.read_text())) == {"5"}
    caplog.clear()
    calibration_for.cache_clear()
    assert calibration_for(5) == first
    assert not caplog.text
    file.write_text("{")  # an interrupted write of somebody else's
    calibration_for.cache_clear()
    assert calibration_for(5) == first
    calibration_for.cache_clear()


def test_a_read_only_home_is_no_reason_to_fail(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr("lln.matching.calibration.LENGTHS", (16,))
    monkeypatch.setattr("lln.matching.calibration.FIRST_USE_DRAWS", 1)
    calibration_for.cache_clear()
    assert calibration_for(5).head_dim == 5
    assert "could not keep" in caplog.text
    calibration_for.cache_clear()


def test_files_are_written_whole(tmp_path):
    found = calibrate(4, (16,), draws=1)
    path = tmp_path / "new" / "calibration.json"
    save([found], path)
    assert load(path) == {4: found}
    assert list(path.parent.iterdir()) == [path]


def attention_matrices(d, n, sigma, matching, draws=8):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(draws, 1, n, d, generator=generator).double() * sigma for _ in range(2))
    cores = (SoftmaxAttention(1, d), LLNAttention(1, d, matching=matching))
    return [matrix_of(core, q, k) for core in cores]


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.parametrize("n", [256, 512])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5, 1.8])
def test_entropy_is_matched(d, n, sigma):
    softmax, lln = (entropy(p).bits for p in attention_matrices(d, n, sigma, "entropy"))
    assert abs((lln - softmax).mean()) <= 0.1


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5, 1.8])
def test_variance_is_matched(d, sigma):
    matrices = attention_matrices(d, 512, sigma, Matching(target="variance"))
    target, achieved = (p.rows(torch.arange(512)).log().var((-2, -1)).mean() for p in matrices)
    assert abs(achieved / target - 1) <= 0.05


@pytest.mark.parametrize(("sigma", "limit"), [(0.8, 0.06), (1.2, 0.06), (1.5, 0.12)])
def test_matched_entropy_brings_the_spectral_gap_along(sigma, limit):
    matrices = attention_matrices(64, 256, sigma, "entropy")
    softmax, lln = (spectral_gap(p, tolerance=1e-3, singular=False).gap for p in matrices)
    assert abs((lln - softmax).mean()) <= limit
