"""The mechanisms of `lln.functional` side by side, each with its oracle, and what tests ask."""

from collections.abc import Callable
from typing import NamedTuple

import oracles
import torch
import torch.nn.functional as F
from torch import Tensor

from lln import functional as lf

# No two alike, so that a mix-up shows.
ALPHA, BETA, BLOCK, CHUNK = 1.5, 0.7, 5, 4
SHARES = {"lln_share": 0.3, "diag_share": 0.6}


class Mechanism(NamedTuple):
    run: Callable[..., Tensor]
    """(q, k, v, **setting) → out, the code under test."""
    matrix: Callable[..., Tensor]
    """(q, k, **setting) → P `(B, H, N_q, N_k)` in float64."""


def positive(x: Tensor) -> Tensor:
    return F.relu(x) + 0.1


def _see(q, k, **setting):
    return oracles.visible(q.shape[2], k.shape[2], **setting)


def _softmax_matrix(q, k, scale=None, **setting):
    return oracles.softmax(q, k, _see(q, k, **setting), scale)


def _block_matrix(q, k, scale=None, **setting):
    near = oracles.same_block(q.shape[2], k.shape[2], BLOCK, **setting)
    return oracles.softmax(q, k, near, scale)


def _lln_matrix(q, k, key_shift=None, **setting):
    return oracles.lln(q, k, _see(q, k, **setting), ALPHA, BETA, key_shift)


def _diag_matrix(q, k, scale=None, key_shift=None, **setting):
    far = _lln_matrix(q, k, key_shift, **setting)
    near = _block_matrix(q, k, scale, **setting)
    near = near.where(near.sum(-1, keepdim=True) > 0, far)  # in no block: both shares from LLN
    return SHARES["lln_share"] * far + SHARES["diag_share"] * near


MECHANISMS = {
    "softmax": Mechanism(lf.softmax_attention, _softmax_matrix),
    "linear": Mechanism(
        lambda q, k, v, **s: lf.linear_attention(
            positive(q), positive(k), v, chunk_size=CHUNK, **s
        ),
        lambda q, k, **s: oracles.kernel(positive(q), positive(k), _see(q, k, **s)),
    ),
    "block": Mechanism(
        lambda q, k, v, **s: lf.block_diagonal_attention(q, k, v, block_size=BLOCK, **s),
        _block_matrix,
    ),
    "lln": Mechanism(
        lambda q, k, v, **s: lf.lln_attention(q, k, v, ALPHA, BETA, chunk_size=CHUNK, **s),
        _lln_matrix,
    ),
    "lln_diag": Mechanism(
        lambda q, k, v, **s: lf.lln_diag_attention(
            q, k, v, ALPHA, BETA, block_size=BLOCK, chunk_size=CHUNK, **SHARES, **s
        ),
        _diag_matrix,
    ),
}


def draw(n_q=20, n_k=None, *, batch=2, heads=2, kv_heads=None, dim=5, dim_v=3, dtype=torch.float32):
    """Random q `(B, H, N_q, D)`, k `(B, H_kv, N_k, D)`, v `(B, H_kv, N_k, E)`."""
    n_k, kv_heads = n_q if n_k is None else n_k, kv_heads or heads
    q = torch.randn(batch, heads, n_q, dim, dtype=dtype)
    k = torch.randn(batch, kv_heads, n_k, dim, dtype=dtype)
    return q, k, torch.randn(batch, kv_heads, n_k, dim_v, dtype=dtype)


def attend(matrix, v):
    return matrix @ v.double().repeat_interleave(matrix.shape[1] // v.shape[1], dim=1)


def oracle(mechanism, q, k, v, **setting):
    return attend(MECHANISMS[mechanism].matrix(q, k, **setting), v)


def out_and_gradients(f, *inputs):
    """f's result and the gradients of a random sum of it, the same for results of any dtype."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = f(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return out.detach(), torch.autograd.grad(out, inputs, weight.to(out))


def error(actual, expected):
    """Largest error of some tensors, relative to the largest number among those expected."""
    pairs = zip(actual, expected, strict=True)
    worst = torch.stack([(a.double() - e.double()).abs().max() for a, e in pairs]).max()
    return float(worst / torch.stack([e.double().abs().max() for e in expected]).max())


def assert_same(actual, expected, **tolerance):
    """Within rounding of the dtype of `actual`; nested tuples and lists as a whole."""
    if isinstance(actual, Tensor):
        torch.testing.assert_close(actual, expected.to(actual.dtype), **tolerance)
    else:
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, **tolerance)


def assert_identical(actual, expected):
    """Bit by bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_same_with_gradients(f, g, *inputs, **tolerance):
    assert_same(out_and_gradients(f, *inputs), out_and_gradients(g, *inputs), **tolerance)
