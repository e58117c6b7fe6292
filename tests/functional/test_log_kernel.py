"""Chunks of the causal form: rows within and beyond reach, and sums before each chunk."""

import pytest
import torch
from torch.autograd import gradcheck

from functional.forms import assert_identical, assert_same, draw, out_and_gradients
from lln.functional import lln_attention
from lln.functional.log_kernel import REACH, LogKernel, _all_within_reach, _beyond_reach
from lln.functional.prefix import Sums, exclusive_prefix

SETTINGS = {
    "plain": {},
    "key_mask": {"key_mask": torch.tensor([[0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1]]).bool()},
    "packed": {"cu_seqlens": torch.tensor([0, 2, 2, 5])},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)


def jump(k, position, size):
    """k with one key that is larger in one feature, and one that is smaller in another."""
    k = k.clone()
    k[..., position, 0] += size
    k[..., position, 1] -= size
    return k


@each_setting
@pytest.mark.parametrize("size", [REACH / 2, 2 * REACH])
@pytest.mark.parametrize("position", [0, 1, 4])
def test_gradients_within_and_beyond_reach(position, size, setting):
    batch = 1 if setting == "packed" else 2
    q, k, v = draw(6, batch=batch, heads=2, kv_heads=1, dim=3, dim_v=2, dtype=torch.float64)

    def run(q, k, v):
        return lln_attention(q, k, v, 1.5, 1.0, causal=True, chunk_size=4, **SETTINGS[setting])

    inputs = [x.requires_grad_() for x in (q, jump(k, position, size), v)]
    assert gradcheck(run, inputs)


@pytest.mark.parametrize("shift", [0, 2 * REACH, -2 * REACH])
@pytest.mark.parametrize("position", range(8))
def test_a_jump_is_beyond_reach_from_its_position_on(position, shift):
    """And what comes before it keeps every bit."""
    q, k, v = draw(8, batch=1, dim=3)
    k = k + shift
    before = Sums(torch.zeros(1, 2, 3) + shift, torch.rand(1, 2, 3, 4))
    jumped = jump(k, position, 2 * REACH)
    assert _all_within_reach(k, before.peak)
    assert not _all_within_reach(jumped, before.peak)
    beyond = _beyond_reach(jumped, before.peak)
    assert_identical(beyond[0, 0, :, 0], torch.arange(8) >= position)
    values = torch.cat([v, torch.ones(1, 2, 8, 1)], -1)
    out = LogKernel().read_causal(q, jumped, values, before)
    usual = LogKernel().read_causal(q, k, values, before)
    assert_identical(out[:, :, :position], usual[:, :, :position])


@pytest.mark.parametrize("size", [0, REACH / 2, 2 * REACH])
def test_tiles_equal_the_product(size):
    q, k, v = draw(16, batch=1, heads=1, dim=3, dtype=torch.float64)
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    before = Sums(torch.randn(1, 1, 3).double(), torch.rand(1, 1, 3, 4).double())
    kernel, k = LogKernel(), jump(k, 5, size)
    assert_same(
        out_and_gradients(lambda *x: kernel.read_causal(*x, before), q, k, values),
        out_and_gradients(lambda *x: kernel._read_tiled(*x, before), q, k, values),
    )


@pytest.mark.parametrize("lengths", [[2], [40], [3, 1, 36], [16, 16, 1], [1] * 20 + [2]])
def test_chunk_by_chunk_equals_all_at_once(lengths, monkeypatch):
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    peak = 20 * torch.randn(2, 3, len(sequence), 4, dtype=torch.float64)
    peak[:, :, ::7] = -torch.inf

    def run(total):
        return exclusive_prefix(Sums(peak, total), sequence).total

    total = torch.randn(*peak.shape, 5, dtype=torch.float64).masked_fill(peak.isinf()[..., None], 0)
    one_by_one = out_and_gradients(run, total)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert_same(out_and_gradients(run, total), one_by_one)
