"""Properties that hold for whatever shapes, masks and sizes hypothesis comes up with."""

from itertools import pairwise

import oracles
import torch
from hypothesis import given
from hypothesis import strategies as st

from functional.forms import assert_identical, assert_same, assert_same_with_gradients, attend, draw
from lln.functional import (
    block_diagonal_attention,
    linear_attention,
    lln_attention,
    lln_diag_attention,
    lln_diag_recurrent,
    softmax_attention,
)

sizes = st.integers(1, 9)
powers_of_two = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def cases(draw_, same_length=False, packable=True):
    """Inputs in float64, and one of the settings that all mechanisms share."""
    torch.manual_seed(draw_(st.integers(0, 2**16)))
    n_k = draw_(st.integers(1, 24))
    packed = packable and draw_(st.booleans())
    n_q = n_k if packed or same_length else draw_(st.one_of(st.just(n_k), st.integers(1, 24)))
    batch = 1 if packed else draw_(st.integers(1, 3))
    groups, kv_heads = draw_(st.integers(1, 3)), draw_(st.integers(1, 2))
    shape = {"batch": batch, "heads": groups * kv_heads, "kv_heads": kv_heads}
    shape |= {"dim": draw_(st.integers(1, 6)), "dim_v": draw_(st.integers(1, 4))}
    setting = {"causal": draw_(st.booleans())}
    if draw_(st.booleans()):
        bits = st.lists(st.booleans(), min_size=batch * n_k, max_size=batch * n_k)
        setting["key_mask"] = torch.tensor(draw_(bits)).view(batch, n_k)
    if packed:
        bounds = draw_(st.lists(st.integers(0, n_k), min_size=2, max_size=6))
        setting["cu_seqlens"] = torch.tensor(sorted(bounds))
    return draw(n_q, n_k, dtype=torch.float64, **shape), setting


def check(run, matrix, inputs):
    def expected(q, k, v):
        return attend(matrix(q, k), v)

    assert_same_with_gradients(run, expected, *inputs, rtol=1e-8, atol=1e-10)


class TestOracle:
    @given(cases(), powers_of_two, st.floats(0.1, 4), st.floats(0.1, 4))
    def test_lln(self, case, chunk_size, alpha, beta):
        inputs, setting = case
        visible = oracles.visible(inputs[0].shape[2], inputs[1].shape[2], **setting)
        check(
            lambda *x: lln_attention(*x, alpha, beta, chunk_size=chunk_size, **setting),
            lambda q, k: oracles.lln(q, k, visible, alpha, beta),
            inputs,
        )

    @given(cases(), sizes)
    def test_linear(self, case, chunk_size):
        (q, k, v), setting = case
        visible = oracles.visible(q.shape[2], k.shape[2], **setting)
        check(
            lambda *x: linear_attention(*x, chunk_size=chunk_size, **setting),
            lambda q, k: oracles.kernel(q, k, visible),
            (q.exp(), k.exp(), v),
        )

    @given(cases())
    def test_softmax(self, case):
        inputs, setting = case
        visible = oracles.visible(inputs[0].shape[2], inputs[1].shape[2], **setting)
        check(
            lambda *x: softmax_attention(*x, **setting),
            lambda q, k: oracles.softmax(q, k, visible),
            inputs,
        )

    @given(cases(), sizes)
    def test_block_diagonal(self, case, block_size):
        inputs, setting = case
        near = oracles.same_block(inputs[0].shape[2], inputs[1].shape[2], block_size, **setting)
        check(
            lambda *x: block_diagonal_attention(*x, block_size=block_size, **setting),
            lambda q, k: oracles.softmax(q, k, near),
            inputs,
        )


def run_all(q, k, v, block_size, chunk_size, **setting):
    """The results of all mechanisms side by side, `(5, B, H, N_q, E)`."""
    return torch.stack(
        [
            softmax_attention(q, k, v, **setting),
            linear_attention(q.exp(), k.exp(), v, chunk_size=chunk_size, **setting),
            block_diagonal_attention(q, k, v, block_size=block_size, **setting),
            lln_attention(q, k, v, 1.5, 0.7, chunk_size=chunk_size, **setting),
            lln_diag_attention(
                q, k, v, 1.5, 0.7, chunk_size=chunk_size, block_size=block_size, **setting
            ),
        ]
    )


class TestAllMechanisms:
    @given(cases(), sizes, powers_of_two)
    def test_rows_sum_to_one_or_nothing(self, case, block_size, chunk_size):
        (q, k, v), setting = case
        out = run_all(q, k, torch.ones_like(v), block_size, chunk_size, **setting)
        n_q, n_k = q.shape[2], k.shape[2]
        some = oracles.visible(n_q, n_k, **setting).any(-1, keepdim=True)
        near = oracles.same_block(n_q, n_k, block_size, **setting).any(-1, keepdim=True)
        for x, seen in zip(out, [some, some, near, some, some], strict=True):
            assert_same(x, seen.double().expand_as(x))

    @given(cases(), sizes, powers_of_two, st.floats(-3, 3))
    def test_linear_in_the_values(self, case, block_size, chunk_size, factor):
        (q, k, v), setting = case
        other = torch.randn_like(v)

        def run(v):
            return run_all(q, k, v, block_size, chunk_size, **setting)

        assert_same(run(v + factor * other), run(v) + factor * run(other))

    @given(cases(same_length=True, packable=False), sizes, powers_of_two)
    def test_padding_can_be_left_out(self, case, block_size, chunk_size):
        inputs, setting = case
        keep = setting.pop("key_mask", torch.rand(inputs[0].shape[0], inputs[0].shape[2]) > 0.5)
        out = run_all(*inputs, block_size, chunk_size, key_mask=keep, **setting)
        for b, real in enumerate(keep):
            short = (x[b : b + 1, :, real] for x in inputs)
            alone = run_all(*short, block_size, chunk_size, **setting)
            assert_same(out[:, b : b + 1, :, real], alone)

    @given(cases(same_length=True), sizes, powers_of_two, st.data())
    def test_the_past_does_not_know_the_future(self, case, block_size, chunk_size, data):
        inputs, setting = case
        setting["causal"] = True
        now = data.draw(st.integers(0, inputs[0].shape[2]))
        changed = [x.clone() for x in inputs]
        for x in changed:
            x[:, :, now:] = 1e2 * torch.randn_like(x[:, :, now:])
        before = run_all(*inputs, block_size, chunk_size, **setting)
        after = run_all(*changed, block_size, chunk_size, **setting)
        assert_identical(after[:, :, :, :now], before[:, :, :, :now])


@given(cases(), powers_of_two, st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_lln_does_not_notice_what_all_features_share(case, chunk_size, on_q, on_k):
    (q, k, v), setting = case
    setting["chunk_size"] = chunk_size
    out = lln_attention(q + on_q, k + on_k, v, 1.5, 0.7, **setting)
    assert_same(out, lln_attention(q, k, v, 1.5, 0.7, **setting))


@given(cases(same_length=True, packable=False), sizes, powers_of_two, st.data())
def test_decoding_can_be_cut_anywhere(case, block_size, chunk_size, data):
    inputs, setting = case
    n, keep = inputs[0].shape[2], setting.get("key_mask")
    cuts = sorted(data.draw(st.sets(st.integers(1, n)))) if n > 1 else []
    sizes_ = {"block_size": block_size, "chunk_size": chunk_size}

    def decode(q, k, v):
        state, outs = None, []
        for start, end in pairwise(sorted({0, n, *cuts})):
            piece = (x[:, :, start:end] for x in (q, k, v))
            mask = None if keep is None else keep[:, start:end]
            out, state = lln_diag_recurrent(*piece, 1.5, 0.7, state, key_mask=mask, **sizes_)
            outs.append(out)
        return torch.cat(outs, 2)

    def once(q, k, v):
        return lln_diag_attention(q, k, v, 1.5, 0.7, causal=True, key_mask=keep, **sizes_)

    assert_same_with_gradients(decode, once, *inputs, rtol=1e-8, atol=1e-10)
