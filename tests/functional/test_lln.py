"""LLN attention against Eq. 9 in the log domain, at every scale and in every form."""

from itertools import pairwise, product

import oracles
import pytest
import torch

from functional.forms import (
    assert_identical,
    assert_same,
    assert_same_with_gradients,
    attend,
    draw,
    error,
    out_and_gradients,
)
from lln.functional import lln_attention, lln_recurrent

N = 80
BOUNDS = torch.tensor([0, 30, 30, 43, 79])


def in_pieces(prefill):
    """Prefill, then step by step."""

    def run(q, k, v, alpha, beta):
        state, outs = None, []
        for start, end in zip([0, *range(prefill, N)], range(prefill, N + 1), strict=True):
            piece = (x[:, :, start:end] for x in (q, k, v))
            out, state = lln_recurrent(*piece, alpha, beta, state)
            outs.append(out)
        return torch.cat(outs, 2)

    return run


def with_setting(**setting):
    return lambda *args: lln_attention(*args, **setting)


FORMS = {
    "both_ways": (with_setting(), {}),
    **{
        f"causal_{size}": (with_setting(causal=True, chunk_size=size), {"causal": True})
        for size in (1, 2, 8, 64, 256)
    },
    **{f"recurrent_{n}": (in_pieces(n), {"causal": True}) for n in (1, 5, 64, 79)},
    "packed": (with_setting(cu_seqlens=BOUNDS, chunk_size=8), {"cu_seqlens": BOUNDS}),
    "packed_causal": (
        with_setting(cu_seqlens=BOUNDS, chunk_size=8, causal=True),
        {"cu_seqlens": BOUNDS, "causal": True},
    ),
}
OUTLIERS = {
    "all_features": torch.ones(8),
    "one_feature": torch.eye(8)[3],
    "mixed_features": torch.tensor([-0.1, 0.7, -1.0, 0.4, 1.0, 0.1, -0.7, -0.4]),
}


@pytest.fixture(scope="module")
def visible():
    """The oracle's masks, each made once: loops over all pairs take their time."""
    return {name: oracles.visible(N, N, **setting) for name, (_, setting) in FORMS.items()}


@pytest.mark.parametrize("std", [1, 3, 10, 30, 100])
@pytest.mark.parametrize(("outlier", "position"), [(None, 0), *product(OUTLIERS, [0, 37, N - 1])])
@pytest.mark.parametrize("form", FORMS)
def test_float32_is_exact_at_any_scale(form, outlier, position, std, visible):
    q, k, v = draw(N, batch=1, dim=8)
    k = std * k
    if outlier is not None:
        k[:, :, position] = 1e3 * OUTLIERS[outlier]
    run, _ = FORMS[form]
    out, gradients = out_and_gradients(lambda q, k, v: run(q, k, v, std, 1.0), q, k, v)
    expected, expected_gradients = out_and_gradients(
        lambda q, k, v: attend(oracles.lln(q, k, visible[form], std, 1.0), v), q, k, v
    )
    bound = 1e-5 if std <= 10 else 1e-3
    assert error([out], [expected]) <= bound
    # Under an outlier the true gradient of q may be 0: errors are relative to the largest of all.
    assert error(gradients, expected_gradients) <= bound


@pytest.mark.parametrize("form", FORMS)
def test_float32_with_an_offset_common_to_all_keys(form, visible):
    q, k, v = draw(N, batch=1, dim=8)
    k = k + 1e3
    run, _ = FORMS[form]
    expected = attend(oracles.lln(q, k, visible[form], 3.0, 1.0), v)
    assert error([run(q, k, v, 3.0, 1.0)], [expected]) <= 1e-4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("offset", [-1e6, 1e6])
def test_padding_has_no_weight_whatever_the_size_of_real_keys(causal, offset):
    q, k, v = draw(dtype=torch.float64)
    setting = {"causal": causal, "key_mask": torch.rand(2, 20) > 0.5}
    out = lln_attention(q, k + offset, v, 1.5, 0.7, **setting)
    assert_same(out, lln_attention(q, k, v, 1.5, 0.7, **setting))


def test_permutation_of_keys_and_queries():
    q, k, v = draw()
    order = torch.randperm(20)
    out = lln_attention(q, k, v, 1.5, 0.7)
    assert_same(lln_attention(q, k[:, :, order], v[:, :, order], 1.5, 0.7), out)
    assert_same(lln_attention(q[:, :, order], k, v, 1.5, 0.7), out[:, :, order])


@pytest.mark.parametrize("causal", [False, True])
class TestFactors:
    """α, β and the shift of the keys, each a number or a tensor that broadcasts."""

    @pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (3, 4)])
    def test_alpha(self, causal, shape):
        self.check(causal, torch.rand(shape) + 1, torch.tensor(0.7))

    @pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 1), (3, 2)])
    def test_beta(self, causal, shape):
        self.check(causal, torch.tensor(1.5), torch.rand(shape) + 0.5)

    @pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 1), (3, 1, 5), (3, 2, 5)])
    def test_key_shift(self, causal, shape):
        self.check(causal, torch.rand(3, 4) + 1, torch.rand(3, 2) + 0.5, torch.randn(shape))

    def check(self, causal, *factors):
        inputs = draw(batch=3, heads=4, kv_heads=2, dtype=torch.float64)
        visible = oracles.visible(20, 20, causal=causal)

        def run(q, k, v, alpha, beta, shift=None):
            return lln_attention(q, k, v, alpha, beta, causal=causal, key_shift=shift)

        def oracle(q, k, v, alpha, beta, shift=None):
            return attend(oracles.lln(q, k, visible, alpha, beta, shift), v)

        factors = (x.double() for x in factors)
        assert_same_with_gradients(run, oracle, *inputs, *factors, rtol=1e-9, atol=1e-11)

    def test_per_packed_sequence(self, causal):
        inputs = draw(20, batch=1, heads=4, kv_heads=2)
        alpha, beta, shift = torch.rand(3, 4) + 1, torch.rand(3, 2) + 0.5, torch.randn(3, 2, 5)
        bounds = [0, 7, 7, 20]
        setting = {"cu_seqlens": torch.tensor(bounds), "causal": causal}
        out = lln_attention(*inputs, alpha, beta, key_shift=shift, **setting)
        alone = [
            lln_attention(
                *(x[:, :, start:end] for x in inputs),
                alpha[s],
                beta[s],
                key_shift=shift[s],
                causal=causal,
            )
            for s, (start, end) in enumerate(pairwise(bounds))
        ]
        assert_same(out, torch.cat(alone, 2))

    def test_other_dtype(self, causal):
        alpha, beta = torch.tensor(1.5, dtype=torch.float64), torch.tensor(2, dtype=torch.int64)
        q, k, v = (x.bfloat16() for x in draw())
        out = lln_attention(q, k, v, alpha, beta, causal=causal)
        assert_identical(out, lln_attention(q, k, v, 1.5, 2.0, causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e30])
def test_junk_in_padding_keeps_out_of_gradients_of_factors(causal, junk):
    q, k, v = draw()
    keep = torch.rand(2, 20) > 0.3

    def run(alpha, beta, shift, k, v):
        setting = {"key_mask": keep, "key_shift": shift, "causal": causal}
        return lln_attention(q, k, v, alpha, beta, **setting)

    factors = torch.rand(2, 2), torch.rand(2, 2), torch.randn(2, 2, 5)
    dirty = [x.masked_fill(~keep[:, None, :, None], junk) for x in (k, v)]
    assert_identical(
        out_and_gradients(lambda *f: run(*f, *dirty), *factors),
        out_and_gradients(lambda *f: run(*f, k, v), *factors),
    )


@pytest.mark.parametrize("bad", ["q", "k", "v"])
@pytest.mark.parametrize("form", ["both_ways", "causal", "packed", "packed_causal"])
def test_nan_stays_in_its_row_of_the_batch_and_head(form, bad):
    packed, causal = form.startswith("packed"), form.endswith("causal")
    inputs = dict(zip("qkv", draw(batch=1 if packed else 2), strict=True))
    bounds = torch.tensor([0, 3, 8, 20]) if packed else None
    b, h, i = 0, 1, 6
    broken = {**inputs, bad: inputs[bad].clone()}
    broken[bad][b, h, i] = torch.nan

    def run(q, k, v):
        setting = {"causal": causal, "cu_seqlens": bounds, "chunk_size": 4}
        return lln_attention(q, k, v, 1.5, 0.7, **setting)

    sees = torch.zeros(*inputs["q"].shape[:3], dtype=torch.bool)
    sees[b, h] = (
        torch.arange(20) == i
        if bad == "q"
        else oracles.visible(20, 20, causal=causal, cu_seqlens=bounds)[0, 0, :, i]
    )
    out, before = run(**broken), run(**inputs)
    assert out.isnan().any(-1)[sees].all()
    out[b, h], before[b, h] = 0, 0
    assert_identical(out, before)
