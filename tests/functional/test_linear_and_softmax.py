"""Linearised attention for any features, and softmax attention, the reference."""

import oracles
import pytest
import torch
import torch.nn.functional as F

from functional.forms import (
    assert_identical,
    assert_same,
    assert_same_with_gradients,
    attend,
    draw,
    error,
    out_and_gradients,
    positive,
)
from lln.functional import linear_attention, softmax_attention

each_direction = pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])


class TestLinear:
    @each_direction
    @pytest.mark.parametrize("chunk_size", [1, 3, 7, 64, 100])
    def test_chunk_sizes(self, causal, chunk_size):
        q, k, v = draw(70, heads=4, kv_heads=2)
        visible = oracles.visible(70, 70, causal=causal)
        setting = {"causal": causal, "chunk_size": chunk_size}
        out, gradients = out_and_gradients(
            lambda *x: linear_attention(*x, **setting), positive(q), positive(k), v
        )
        expected, expected_gradients = out_and_gradients(
            lambda q, k, v: attend(oracles.kernel(q, k, visible), v), positive(q), positive(k), v
        )
        assert error([out], [expected]) <= 1e-5
        assert error(gradients, expected_gradients) <= 1e-5

    @each_direction
    def test_default_chunk_size(self, causal):
        q, k, v = draw(130, batch=1)
        visible = oracles.visible(130, 130, causal=causal)
        assert_same_with_gradients(
            lambda q, k, v: linear_attention(positive(q), positive(k), v, causal=causal),
            lambda q, k, v: attend(oracles.kernel(positive(q), positive(k), visible), v),
            q,
            k,
            v,
        )

    @each_direction
    @pytest.mark.parametrize("packed", [False, True])
    def test_no_weight_on_any_key_gives_zero(self, causal, packed):
        q, k, v = draw(batch=1)
        phi_q, phi_k = positive(q), positive(k)
        phi_q[:, :, 4] = 0  # orthogonal to every key
        phi_k[:, :, :2] = 0  # causal: nothing to see before the third key
        cu_seqlens = torch.tensor([0, 20]) if packed else None
        out, gradients = out_and_gradients(
            lambda *x: linear_attention(*x, causal=causal, cu_seqlens=cu_seqlens, chunk_size=4),
            phi_q,
            phi_k,
            v,
        )
        alone = [4, 0, 1] if causal else [4]
        assert_identical(out[:, :, alone], torch.zeros(1, 2, len(alone), 3))
        assert out[:, :, 5:].all()
        assert all(x.isfinite().all() for x in gradients)

    @each_direction
    def test_takes_features_as_they_are(self, causal):
        """With Φ(x) = (1, …, 1) every query gets the mean of what it sees."""
        _, _, v = draw()
        ones = torch.ones(2, 2, 20, 5)
        out = linear_attention(ones, ones, v, causal=causal)
        count = torch.arange(1, 21)[:, None]
        mean = v.cumsum(2) / count if causal else v.mean(2, keepdim=True).expand_as(v)
        assert_same(out, mean)


class TestSoftmax:
    @each_direction
    def test_is_scaled_dot_product_attention(self, causal):
        q, k, v = draw()
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert_same(softmax_attention(q, k, v, causal=causal), expected)

    @pytest.mark.parametrize(
        ("expected", "n_q", "n_k"), [("xxx. xxxx", 2, 4), (".. x. xx", 3, 2), ("x. xx", 2, 2)]
    )
    def test_causal_is_aligned_at_the_end(self, expected, n_q, n_k):
        q, k, _ = draw(n_q, n_k, batch=1, heads=1)
        out = softmax_attention(q, k, torch.eye(n_k)[None, None], causal=True)
        rows = ["".join("x" if weight else "." for weight in row) for row in out[0, 0].tolist()]
        assert rows == expected.split()

    def test_scale(self):
        q, k, v = draw()
        assert_same(
            softmax_attention(q, k, v, scale=0.3), softmax_attention(0.3 * q, k, v, scale=1)
        )
