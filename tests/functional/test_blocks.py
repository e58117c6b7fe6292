"""Block-diagonal attention and LLN+Diag: where blocks begin, who is in them, how branches mix."""

import oracles
import pytest
import torch

from functional.forms import assert_same, assert_same_with_gradients, attend, draw
from lln.functional import (
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    softmax_attention,
)

each_direction = pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
PACKED = torch.tensor([0, 3, 5])


def keep(row):
    return torch.tensor([[c == "x" for c in row]])


def who_sees_whom(n_q, n_k, **setting):
    """One row of x and . per query, read off the weights that values of 0 and 1 lay bare."""
    q, k, _ = draw(n_q, n_k, batch=1, heads=1)
    out = block_diagonal_attention(q, k, torch.eye(n_k)[None, None], block_size=2, **setting)
    return ["".join("x" if weight else "." for weight in row) for row in out[0, 0].tolist()]


@pytest.mark.parametrize(
    ("expected", "setting"),
    [
        ("xx... xx... ..xx. ..xx. ....x", {}),
        ("x.... xx... ..x.. ..xx. ....x", {"causal": True}),
        ("..... .xx.. .xx.. ...xx ...xx", {"key_mask": keep(".xxxx")}),
        ("xx... xx... ..... ...xx ...xx", {"key_mask": keep("xx.xx")}),
        ("x.x.. ..... x.x.. ...xx ...xx", {"key_mask": keep("x.xxx")}),
        ("x.... ..... x.x.. ...x. ...xx", {"key_mask": keep("x.xxx"), "causal": True}),
        ("xx... xx... ..x.. ...xx ...xx", {"cu_seqlens": PACKED}),
        ("x.... xx... ..x.. ...x. ...xx", {"cu_seqlens": PACKED, "causal": True}),
        ("x.x.. ..... x.x.. ...xx ...xx", {"cu_seqlens": PACKED, "key_mask": keep("x.xxx")}),
        ("..... .xx.. .xx.. ...x. .....", {"cu_seqlens": torch.tensor([1, 4])}),
    ],
)
def test_blocks_are_counted_over_real_tokens(expected, setting):
    assert who_sees_whom(5, 5, **setting) == expected.split()


@pytest.mark.parametrize(
    ("expected", "n_q", "n_k", "setting"),
    [
        ("..xx. ....x", 2, 5, {}),
        ("..xx. ....x", 2, 5, {"causal": True}),
        ("..x. ..xx", 2, 4, {"causal": True}),
        ("xx... ..x..", 2, 5, {"key_mask": keep("xxx..")}),
        ("..... .....", 2, 5, {"key_mask": keep("xxx.."), "causal": True}),
        (".xx.. ....x", 2, 5, {"key_mask": keep(".xx.x")}),
        ("..... ....x", 2, 5, {"key_mask": keep(".xx.x"), "causal": True}),
        (".. xx xx", 3, 2, {}),
        (".. x. xx", 3, 2, {"causal": True}),
    ],
)
def test_other_number_of_queries_is_aligned_at_the_end(expected, n_q, n_k, setting):
    assert who_sees_whom(n_q, n_k, **setting) == expected.split()


@each_direction
@pytest.mark.parametrize("block_size", [1, 2, 7, 20, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_block_sizes(block_size, causal, masked):
    setting = {"causal": causal, "key_mask": torch.rand(2, 20) > 0.3 if masked else None}
    near = oracles.same_block(20, 20, block_size, **setting)
    assert_same_with_gradients(
        lambda *x: block_diagonal_attention(*x, block_size=block_size, **setting),
        lambda q, k, v: attend(oracles.softmax(q, k, near), v),
        *draw(heads=4, kv_heads=2),
    )


@each_direction
def test_a_block_as_long_as_the_sequence_is_softmax(causal):
    inputs = draw()
    out = block_diagonal_attention(*inputs, block_size=20, causal=causal)
    assert_same(out, softmax_attention(*inputs, causal=causal))


@each_direction
def test_default_block_size(causal):
    inputs = draw(130, batch=1)
    out = block_diagonal_attention(*inputs, causal=causal)
    assert_same(out, block_diagonal_attention(*inputs, causal=causal, block_size=64))
    assert not torch.equal(out, block_diagonal_attention(*inputs, causal=causal, block_size=65))


@each_direction
class TestDiag:
    def test_is_the_sum_of_its_branches(self, causal):
        inputs = draw()
        far = lln_attention(*inputs, 1.5, 0.7, causal=causal)
        near = block_diagonal_attention(*inputs, block_size=6, causal=causal)
        out = lln_diag_attention(*inputs, 1.5, 0.7, block_size=6, causal=causal)
        assert_same(out, 0.5 * far + 0.5 * near)
        share = torch.rand(2, 1, 1)
        out = lln_diag_attention(
            *inputs, 1.5, 0.7, block_size=6, causal=causal, lln_share=share, diag_share=1 - share
        )
        assert_same(out, share * far + (1 - share) * near)

    def test_options_reach_both_branches(self, causal):
        inputs, shift = draw(), torch.randn(5)
        setting = {"causal": causal, "key_mask": torch.rand(2, 20) > 0.3}
        far = lln_attention(*inputs, 1.5, 0.7, key_shift=shift, **setting)
        near = block_diagonal_attention(*inputs, block_size=6, scale=2.0, **setting)
        near = near.where(setting["key_mask"][:, None, :, None], far)
        setting |= {"block_size": 6, "scale": 2.0, "key_shift": shift, "chunk_size": 8}
        assert_same(lln_diag_attention(*inputs, 1.5, 0.7, **setting), (far + near) / 2)

    def test_outside_of_all_blocks_lln_takes_both_shares(self, causal):
        q, k, v = draw(20, 14)
        shares = {"lln_share": 0.2, "diag_share": 0.5}
        out = lln_diag_attention(q, k, v, 1.5, 0.7, **shares, causal=causal)
        far = lln_attention(q, k, v, 1.5, 0.7, causal=causal)
        assert_same(out[:, :, :6], 0.7 * far[:, :, :6])

    def test_shares_of_another_dtype(self, causal):
        share = torch.rand(2, 1, 1, dtype=torch.float64)
        inputs = [x.bfloat16() for x in draw()]
        out = lln_diag_attention(*inputs, 1.5, 0.7, lln_share=share, causal=causal)
        assert out.dtype == torch.bfloat16
