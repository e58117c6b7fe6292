"""Means over rows: entropy and variance, and Theorems 3.2 and 3.4 about them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from instruments.matrices import (
    AVERAGING,
    FACTORED,
    HEADS,
    KNOWN,
    alone,
    build,
    dense,
    draw,
    padded,
)
from lln.instruments import Dense, entropy, entropy_floor, matrix_of, variance

scores = st.lists(st.floats(-8, 8), min_size=2, max_size=12)
temperatures = st.floats(0.05, 20)


def softmax_row(row, temperature):
    x = torch.tensor(row, dtype=torch.float64)
    return (x / temperature).softmax(-1).view(1, 1, 1, -1)


@pytest.mark.parametrize("name", KNOWN)
def test_closed_forms(name):
    p, bits, _, _, spread = KNOWN[name]
    p = p.double()[None, None]
    exact = {"atol": 1e-10, "rtol": 0}
    for found, value in ((entropy(p).bits, bits), (variance(p).mean, spread)):
        assert_close(found, torch.tensor([[value]], dtype=torch.float64), **exact)
    assert entropy(p).standard_error.item() == 0
    assert entropy(p).per_row.shape == (1, 1, p.shape[2])


@given(scores, temperatures, st.floats(1.01, 3))
def test_theorem_3_2_entropy_rises_with_temperature(row, cold, ratio):
    low, high = (entropy(softmax_row(row, t)).bits.item() for t in (cold, ratio * cold))
    assert high >= low - 1e-12
    if 0.1 < (max(row) - min(row)) / cold < 20:  # beyond, doubles cannot tell them apart
        assert high > low


@given(scores, temperatures, st.floats(1.01, 3))
def test_theorem_3_4_variance_falls_with_temperature(row, cold, ratio):
    low, high = (variance(softmax_row(row, t)).mean.item() for t in (cold, ratio * cold))
    assert high <= low + 1e-12
    if 0.1 < (max(row) - min(row)) / cold < 20:
        assert high < low


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("block", [1, 7, 256])
def test_streamed_rows_are_those_of_the_dense_matrix(name, block):
    core, (q, k) = build(name), draw()
    p = dense(core, q, k)
    found = entropy(matrix_of(core, q, k), block=block)
    assert_close(found.per_row, -torch.special.xlogy(p, p).sum(-1) / math.log(2))
    assert_close(found.bits, found.per_row.mean(-1))
    spread = variance(matrix_of(core, q, k), block=block)
    assert_close(spread.per_row, (p - 1 / 40).square().mean(-1))


@pytest.mark.parametrize("measure", [entropy, variance])
@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("name", AVERAGING)
def test_padding_changes_nothing(name, measure, rows):
    core, (q, k) = build(name), draw(batch=1)
    q_padded, k_padded, keep = padded(q, k)
    together = measure(matrix_of(core, q_padded, k_padded, key_mask=keep), rows=rows).to_dict()
    for i, short in enumerate(alone(q, k)):
        expected = measure(matrix_of(core, *short), rows=rows).to_dict()
        for field in ("bits", "mean", "standard_error"):
            if field in expected:
                assert together[field][i] == pytest.approx(expected[field][0], abs=1e-9)
        count = len(expected["per_row"][0][0])
        assert together["real"][i] == [True] * count + [False] * (len(together["real"][i]) - count)


def test_a_sample_estimates_the_mean_within_its_error():
    matrix = matrix_of(build("softmax"), *draw(200))
    exact = entropy(matrix)
    deviations = torch.stack(
        [
            (found.bits - exact.bits) / found.standard_error
            for found in (entropy(matrix, rows=50, seed=seed) for seed in range(40))
        ]
    )
    assert 0.85 < deviations.square().mean().sqrt() < 1.15
    assert entropy(matrix, rows=200).standard_error.max() == 0
    assert_close(entropy(matrix, rows=200).bits, exact.bits)
    assert (entropy(matrix, rows=50).bits - entropy(matrix, rows=50, seed=1).bits).abs().min() > 0


@pytest.mark.parametrize("name", FACTORED)
def test_no_row_is_sharper_than_the_floor(name):
    core, (q, k) = build(name), draw(batch=1)
    matrix = matrix_of(core, q, k)
    floor = entropy_floor(matrix)
    assert (entropy(matrix).per_row.amin(-1) >= floor - 1e-9).all()
    columns = -torch.special.xlogy(matrix.b, matrix.b).sum(-2) / math.log(2)
    columns = columns.where(matrix.b.sum(-2) > 0, torch.inf)
    assert_close(floor, columns.amin(-1))
    q_padded, k_padded, keep = padded(q, k)
    together = entropy_floor(matrix_of(core, q_padded, k_padded, key_mask=keep))
    assert_close(together[:1], floor)
    nothing = matrix_of(core, q, k, key_mask=torch.zeros(1, 40, dtype=torch.bool))
    assert not entropy_floor(nothing).any()


def test_half_precision_is_computed_in_float32():
    p = torch.full((1, 1, 4, 1000), 1e-3, dtype=torch.bfloat16)
    one = p[0, 0, 0, 0].float()
    assert_close(entropy(p).bits, (-1000 * one * one.log2()).view(1, 1))


@pytest.mark.parametrize("name", ["softmax", "lln", "lln_diag", "elu"])
def test_one_token_and_none(name):
    core, (q, k) = build(name), draw()
    mask = torch.zeros(2, 40, dtype=torch.bool)
    mask[1, 7] = True
    for matrix in (
        matrix_of(core, q, k, key_mask=mask),
        matrix_of(core, q[:, :, :1], k[:, :, :1]),
        matrix_of(core, q[:, :, :0], k[:, :, :0]),
    ):
        zeros = torch.zeros(2, HEADS, dtype=torch.float64)
        for found in (entropy(matrix), variance(matrix), entropy(matrix, rows=3)):
            assert_close(found.standard_error, zeros)
            assert_close(getattr(found, "bits", zeros), zeros, atol=1e-10, rtol=0)


def test_negative_weights_have_no_entropy():
    found = entropy(torch.tensor([[[[1.5, -0.5], [0.5, 0.5]]]]))
    assert found.bits.isnan().all()
    assert found.to_dict()["bits"] == [[None]]


def test_bad_arguments():
    p = Dense(torch.ones(1, 1, 2, 2))
    with pytest.raises(ValueError, match="rows must be a positive integer"):
        entropy(p, rows=0)
    with pytest.raises(ValueError, match="block must be a positive integer"):
        entropy(p, block=0)
