"""Chunks of the causal form: rows within and beyond reach, and sums before each chunk."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from functional.forms import assert_identical, assert_same, draw, out_and_gradients
from lln.functional import in_order, lln_attention
from lln.functional.chunked import attend_at_once, fold_groups
from lln.functional.log_kernel import REACH, LogKernel, _all_within_reach, _beyond_reach
from lln.functional.prefix import Sums

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
    q, k, v = (x.unflatten(2, (1, 8)) for x in draw(8, batch=1, dim=3))
    k = k + shift
    before = Sums(torch.zeros(1, 2, 3) + shift, torch.rand(1, 2, 3, v.shape[-1] + 1))
    jumped = jump(k, position, 2 * REACH)
    peak = before.peak.unsqueeze(2)
    assert _all_within_reach(k, k.amax(-2), peak)
    assert not _all_within_reach(jumped, jumped.amax(-2), peak)
    beyond = _beyond_reach(jumped, peak)
    assert_identical(beyond[0, 0, 0, :, 0], torch.arange(8) >= position)
    sequence = torch.zeros(1, dtype=torch.int)
    out, _ = LogKernel().attend_in_order(q, jumped, v, sequence, before)
    usual, _ = LogKernel().attend_in_order(q, k, v, sequence, before)
    assert_identical(out[..., :position, :], usual[..., :position, :])


@pytest.mark.parametrize("size", [0, REACH / 2, 2 * REACH])
@pytest.mark.parametrize("lengths", [[1], [40], [3, 1, 36], [16, 16, 1], [1] * 20 + [2]])
def test_chunk_by_chunk_equals_all_at_once(lengths, size, monkeypatch):
    """Outputs, the sums after the last chunk, and the gradients of both."""
    monkeypatch.setattr(in_order, "BLOCK", 7)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    q, k, v = draw(4 * len(sequence), batch=2, heads=4, kv_heads=2, dim=3, dtype=torch.float64)
    q, k, v = (x.unflatten(2, (-1, 4)) for x in (q, jump(k, 4 * len(sequence) // 3, size), v))
    q, kernel = fold_groups(q, 2), LogKernel()
    k[:, :, ::7] = -torch.inf
    inputs = [q, k, v]
    if len(lengths) == 1:  # packed sequences come after nothing
        inputs.append(torch.rand(2, 2, 3, v.shape[-1] + 1).double())
    peak = torch.randn(2, 2, 3).double()

    def run(attend):
        def call(q, k, v, total=None):
            state = None if total is None else Sums(peak, total)
            out, after = attend(q, k, v, sequence, state)
            return torch.cat([out.flatten(), after.total.flatten()])

        return out_and_gradients(call, *inputs)

    assert_same(run(kernel.attend_in_order), run(partial(attend_at_once, kernel)))
