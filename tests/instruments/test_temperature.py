import math

import pytest
import torch
from torch.testing import assert_close

from instruments.matrices import AVERAGING, HEADS, alone, build, dense, draw, padded
from lln.attention import LLNAttention, SoftmaxAttention
from lln.instruments import temperature
from lln.matching import AUTHORS_FIT, UncalibratedWarning, calibration_for, match


def within_rows(p):
    """1/σ of log P by its definition, over positive weights."""
    rows = [[row[row > 0].log().var(correction=0) for row in head] for head in p.flatten(0, 1)]
    return torch.tensor([torch.stack(row).mean().rsqrt() for row in rows]).view(p.shape[:2])


@pytest.mark.parametrize("name", AVERAGING)
def test_exact_is_the_spread_of_log_weights(name):
    core, (q, k) = build(name), draw()
    found = temperature(core, q, k)
    assert_close(found.exact, within_rows(dense(core, q, k)).to(found.exact))


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_of_softmax(kv_heads):
    core, (q, k) = build("softmax", kv_heads=kv_heads, scale=0.7), draw(kv_heads=kv_heads)
    found = temperature(core, q, k + 3)  # one offset of all keys cancels, but not for the paper
    k = k.repeat_interleave(HEADS // kv_heads, 1)
    scores = 0.7 * q @ k.mT
    assert_close(found.exact, scores.var(-1, correction=0).mean(-1).rsqrt())
    sigma_q, sigma_k = (x.flatten(2).std(-1) for x in (q, k + 3))
    assert_close(found.paper, 1 / (0.7 * math.sqrt(8) * sigma_q * sigma_k))


def test_paper_and_exact_agree_on_independent_gaussians():
    q, k = (torch.randn(1, 2, 4096, 64) for _ in range(2))
    found = temperature(SoftmaxAttention(2, 64), 1.3 * q, 0.8 * k)
    assert_close(found.paper, torch.full((1, 2), 1 / (1.3 * 0.8)), rtol=0.01, atol=0)
    assert_close(found.exact, found.paper, rtol=0.01, atol=0)


@pytest.mark.parametrize("matching", ["paper", "entropy"])
def test_of_lln_by_the_paper(matching):
    q, k = (torch.randn(2, 2, 256, 64, dtype=torch.float64) for _ in range(2))
    found = temperature(LLNAttention(2, 64, matching=matching), q, k)
    alpha, beta, shift = match(matching, q, k)
    var_q = q.flatten(2).var(-1)
    var_k = (k - (0 if shift is None else shift[:, :, None])).flatten(2).var(-1)
    calibrated = calibration_for(64)
    a, b = calibrated.linear[calibrated.lengths.index(256)]
    if matching == "paper":
        a, b = AUTHORS_FIT
    expected = (a * (alpha**2 * var_q + beta**2 * var_k) + b).rsqrt()
    assert_close(found.paper, expected, rtol=1e-4, atol=0)


def test_where_eq_11_says_nothing():
    q, k = (0.05 * torch.randn(1, 2, 256, 64) for _ in range(2))
    found = temperature(LLNAttention(2, 64), q, k)
    assert found.exact.isfinite().all()
    assert found.paper.isinf().all()
    assert found.to_dict()["paper"] == [[None, None]]


@pytest.mark.parametrize("name", AVERAGING)
def test_padding_changes_nothing(name):
    core, (q, k) = build(name), draw(batch=1)
    q_padded, k_padded, keep = padded(q, k)
    together = temperature(core, q_padded, k_padded, key_mask=keep, rows=8)
    for i, short in enumerate(alone(q, k)):
        expected = temperature(core, *short, rows=8)
        assert_close(together.paper[i], expected.paper[0])
        assert_close(together.exact[i], expected.exact[0])


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_token_none_and_lower_precision(name, dtype):
    core, (q, k) = build(name, torch.float32), draw(dtype=dtype)
    mask = torch.zeros(2, 40, dtype=torch.bool)
    mask[1, 7] = True
    for found in (
        temperature(core, q, k, key_mask=mask),
        temperature(core, q[:, :, :1], k[:, :, :1]),
        temperature(core, q[:, :, :0], k[:, :, :0]),
    ):
        assert not found.paper.isnan().any()
        assert (found.exact == torch.inf).all()
    lower, exact = temperature(core, q, k), temperature(core, q.float(), k.float())
    assert_close(lower.exact, exact.exact, rtol=1e-3, atol=0)


@pytest.mark.filterwarnings(
    f"ignore::{UncalibratedWarning.__module__}.{UncalibratedWarning.__qualname__}"
)
@pytest.mark.parametrize("name", ["softmax", "lln", "lln_diag"])
def test_causal(name):
    core, (q, k) = build(name), draw()
    found = temperature(core, q, k, causal=True)
    assert_close(found.exact, within_rows(dense(core, q, k, causal=True)).to(found.exact))


def test_needs_a_core():
    with pytest.raises(TypeError, match="only a core"):
        temperature(torch.nn.Identity(), *draw())
