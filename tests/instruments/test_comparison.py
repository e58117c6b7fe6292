"""Rank correlation with softmax's scores, and the branches of LLN+Diag."""

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from instruments.matrices import AVERAGING, HEADS, alone, build, draw, padded
from lln.instruments import branch_share, matrix_of, monotonicity
from lln.matching import UncalibratedWarning


@pytest.mark.parametrize("name", ["lln", "relu", "block_diag"])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_monotonicity_against_scipy(name, kv_heads):
    core, (q, k) = build(name, kv_heads=kv_heads), draw(kv_heads=kv_heads)
    matrix = matrix_of(core, q, k)
    p, scores = matrix.rows(torch.arange(40)), q @ k.repeat_interleave(HEADS // kv_heads, 1).mT
    expected = [
        [
            sum(stats.spearmanr(p[i, h, row], scores[i, h, row]).statistic for row in range(40))
            for h in range(HEADS)
        ]
        for i in range(2)
    ]
    assert_close(monotonicity(matrix, q, k), torch.tensor(expected, dtype=torch.float64) / 40)


def test_softmax_is_monotone():
    q, k = draw()
    matrix = matrix_of(build("softmax"), q, k)
    assert_close(monotonicity(matrix, q, k), torch.ones(2, HEADS).double())
    assert_close(monotonicity(matrix, -q, k), -torch.ones(2, HEADS).double())
    even = torch.full((2, HEADS, 40, 40), 1 / 40).double()
    assert not monotonicity(even, q, k).any()


@pytest.mark.parametrize("name", AVERAGING)
def test_padding_does_not_change_monotonicity(name):
    core, (q, k) = build(name), draw(batch=1)
    q_padded, k_padded, keep = padded(q, k)
    matrix = matrix_of(core, q_padded, k_padded, key_mask=keep)
    together = monotonicity(matrix, q_padded, k_padded, rows=8)
    for i, short in enumerate(alone(q, k)):
        expected = monotonicity(matrix_of(core, *short), *short, rows=8)
        # Equal weights that differ by rounding have another order here and there.
        assert_close(together[i], expected[0], atol=2e-2 if name == "relu_kernel" else 1e-9, rtol=0)


def test_monotonicity_of_nothing_one_and_half_precision():
    core, (q, k) = build("lln", torch.float32), draw(dtype=torch.bfloat16)
    nothing = torch.zeros(2, 40, dtype=torch.bool)
    for matrix, n in (
        (matrix_of(core, q, k, key_mask=nothing), 40),
        (matrix_of(core, q[:, :, :1], k[:, :, :1]), 1),
        (matrix_of(core, q[:, :, :0], k[:, :, :0]), 0),
    ):
        assert not monotonicity(matrix, q[:, :, :n], k[:, :, :n]).any()
    found = monotonicity(matrix_of(core, q, k), q, k)
    assert found.dtype == torch.float32
    assert (found > 0.3).all()
    with pytest.raises(ValueError, match="q and k must fit P"):
        monotonicity(matrix_of(core, q, k), q[:, :, :5], k)


@pytest.mark.filterwarnings(
    f"ignore::{UncalibratedWarning.__module__}.{UncalibratedWarning.__qualname__}"
)
@pytest.mark.parametrize("combine", ["average", "learnable_scale", "learnable_ratio"])
@pytest.mark.parametrize("causal", [False, True])
def test_branches_add_up_to_the_output(combine, causal):
    core, (q, k) = build("lln_diag", combine=combine), draw()
    v = torch.randn_like(k)
    found = branch_share(core, q, k, v, causal=causal)
    assert_close(found.lln + found.diag, torch.ones(2, HEADS).double())
    with torch.no_grad():
        out = core(q, k, v, causal=causal)
        core.shares = lambda: (0.0, 0.5)
        change = (out - core(q, k, v, causal=causal)).flatten(2).norm(dim=-1)
    if combine == "average":
        assert_close(found.without_lln, change / out.flatten(2).norm(dim=-1))


def test_branches_of_padded_sequences_and_of_none():
    core, (q, k) = build("lln_diag"), draw(batch=1)
    q_padded, k_padded, keep = padded(q, k)
    together = branch_share(core, q_padded, k_padded, k_padded, key_mask=keep)
    for i, (short_q, short_k) in enumerate(alone(q, k)):
        expected = branch_share(core, short_q, short_k, short_k)
        for name, value in vars(expected).items():
            assert_close(getattr(together, name)[i], value[0])
    nothing = branch_share(core, q_padded, k_padded, k_padded, key_mask=keep & False)
    assert not any(value.any() for value in vars(nothing).values())
    half = branch_share(build("lln_diag", torch.float32), *(x.bfloat16() for x in (q, k, k)))
    assert half.lln.dtype == torch.float32


def test_one_branch_alone():
    core, (q, k) = build("lln_diag", combine="learnable_scale"), draw()
    with torch.no_grad():
        core.diag_share.zero_()
    found = branch_share(core, q, k, k)
    ones = torch.ones(2, HEADS).double()
    assert_close(found.lln, ones)
    assert_close(found.without_lln, ones)
    assert not found.diag.any()


def test_only_lln_diag_has_branches():
    q, k = draw()
    with pytest.raises(TypeError, match="only lln_diag has two branches"):
        branch_share(build("lln"), q, k, k)
