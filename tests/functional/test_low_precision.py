"""Half precision and extreme inputs: no overflow, and no worse than the plain formula."""

import oracles
import pytest
import torch

from functional.forms import (
    ALPHA,
    BETA,
    BLOCK,
    MECHANISMS,
    SHARES,
    draw,
    error,
    oracle,
    out_and_gradients,
    positive,
)

each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)
each_direction = pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])


@each_direction
@each_mechanism
@pytest.mark.parametrize("setting", ["plain", "key_mask", "packed"])
@pytest.mark.parametrize(
    ("std", "dtype"),
    [(30, torch.float16), (30, torch.bfloat16), (1e4, torch.bfloat16), (1e4, torch.float32)],
)
def test_extremes_stay_finite(mechanism, causal, setting, std, dtype):
    inputs = draw(40, batch=1 if setting == "packed" else 2, heads=4, kv_heads=2)
    nothing_and_some = torch.stack([torch.zeros(40), torch.rand(40)]) > 0.3
    options = {
        "plain": {},
        "key_mask": {"key_mask": nothing_and_some},
        "packed": {"cu_seqlens": torch.tensor([0, 3, 3, 25, 38])},
    }[setting]
    out, gradients = out_and_gradients(
        lambda *x: MECHANISMS[mechanism].run(*x, causal=causal, **options),
        *((std * x).to(dtype) for x in inputs),
    )
    for x in (out, *gradients):
        assert x.dtype == dtype
        assert x.isfinite().all()
    assert out.any()
    assert gradients[2].any()  # those of q and k vanish where one weight is all but 1


def plain(mechanism, q, k, v, causal):
    """The formula as it stands in the paper, every step in the dtype of the inputs."""
    near = oracles.same_block(q.shape[2], k.shape[2], BLOCK, causal=causal)
    far = oracles.visible(q.shape[2], k.shape[2], causal=causal)

    def softmax(visible):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v

    def kernel(phi_q, phi_k):
        weight = (phi_q @ phi_k.mT).masked_fill(~far, 0)
        return weight / weight.sum(-1, keepdim=True) @ v

    if mechanism == "linear":
        return kernel(positive(q), positive(k))
    if mechanism in ("softmax", "block"):
        return softmax(far if mechanism == "softmax" else near)
    lln = kernel((ALPHA * q).exp(), (BETA * k).exp())
    if mechanism == "lln":
        return lln
    return SHARES["lln_share"] * lln + SHARES["diag_share"] * softmax(near)


@each_direction
@each_mechanism
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_worse_than_the_plain_formula(mechanism, causal, dtype):
    inputs = [x.to(dtype) for x in draw(60, dim=16, dim_v=16)]
    expected, expected_gradients = out_and_gradients(
        lambda *x: oracle(mechanism, *x, causal=causal), *(x.double() for x in inputs)
    )
    out, gradients = out_and_gradients(
        lambda *x: MECHANISMS[mechanism].run(*x, causal=causal), *inputs
    )
    plain_out, plain_gradients = out_and_gradients(lambda *x: plain(mechanism, *x, causal), *inputs)
    assert error([out], [expected]) <= 2 * error([plain_out], [expected])
    for x, p, e in zip(gradients, plain_gradients, expected_gradients, strict=True):
        assert error([x], [e]) <= 3 * error([p], [e])
