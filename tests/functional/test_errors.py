"""Every bad argument is refused by its name, by every function that takes it."""

import inspect
import re

import pytest
import torch

from functional.forms import draw
from lln.functional import (
    block_diagonal_attention,
    block_diagonal_recurrent,
    linear_attention,
    lln_attention,
    lln_diag_attention,
    lln_diag_recurrent,
    lln_recurrent,
    softmax_attention,
)

FUNCTIONS = {
    f.__name__: f
    for f in (
        softmax_attention,
        linear_attention,
        block_diagonal_attention,
        lln_attention,
        lln_diag_attention,
        block_diagonal_recurrent,
        lln_recurrent,
        lln_diag_recurrent,
    )
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def call(name, q, k, v, **setting):
    """Calls with α = β = 1 where they are asked for."""
    for factor in ("alpha", "beta"):
        if factor in inspect.signature(FUNCTIONS[name]).parameters:
            setting.setdefault(factor, 1.0)
    return FUNCTIONS[name](q, k, v, **setting)


def which_take(*arguments):
    """Each function that takes each of these arguments."""
    return pytest.mark.parametrize(
        ("name", "argument"),
        [
            (name, argument)
            for name, function in FUNCTIONS.items()
            for argument in arguments
            if argument in inspect.signature(function).parameters
        ],
    )


def good(n=6, **shape):
    shape = {"heads": 4, "kv_heads": 2, "dim": 5, "dim_v": 3, **shape}
    return dict(zip("qkv", draw(n, **shape), strict=True))


@each_function
def test_good_arguments_pass(name):
    out = call(name, **good())
    out = out[0] if isinstance(out, tuple) else out
    assert out.shape == (2, 4, 6, 3)


@each_function
@pytest.mark.parametrize(
    ("match", "argument", "bad"),
    [
        ("q must have shape", "q", torch.randn(2, 6, 5)),
        ("k must have shape", "k", torch.randn(6, 5)),
        ("v must have shape", "v", torch.randn(2, 1, 2, 6, 3)),
        ("q must be floating point", "q", torch.ones(2, 4, 6, 5, dtype=torch.int64)),
        ("k must be floating point", "k", torch.ones(2, 2, 6, 5, dtype=torch.bool)),
        ("k must have q's dtype", "k", torch.randn(2, 2, 6, 5).bfloat16()),
        ("v must have q's dtype", "v", torch.randn(2, 2, 6, 3).double()),
        ("q's 3 heads must be a multiple of k's 2", "q", torch.randn(2, 3, 6, 5)),
        ("q's 1 heads must be a multiple of k's 2", "q", torch.randn(2, 1, 6, 5)),
        ("k must have q's head dimension 5, got 4", "k", torch.randn(2, 2, 6, 4)),
        ("k must have q's batch size 2, got 1", "k", torch.randn(1, 2, 6, 5)),
        ("v must share k's", "v", torch.randn(2, 2, 7, 3)),
        ("v must share k's", "v", torch.randn(1, 2, 6, 3)),
        ("v must share k's", "v", torch.randn(2, 4, 6, 3)),
    ],
)
def test_tensors_that_do_not_fit(name, match, argument, bad):
    if name == "linear_attention":  # takes features, and says so
        match = re.sub(r"\b([qk])\b", r"phi_\1", match)
    with pytest.raises(ValueError, match=f"^{match}"):
        call(name, **{**good(), argument: bad})


@each_function
@pytest.mark.parametrize(
    ("match", "key_mask"),
    [
        ("must be bool", torch.ones(2, 6)),
        ("must be bool", torch.ones(2, 6, dtype=torch.int64)),
        ("must have shape", torch.ones(2, 1, 6, 6, dtype=torch.bool)),
        ("must have shape", torch.ones(2, 7, dtype=torch.bool)),
        ("must have shape", torch.ones(1, 6, dtype=torch.bool)),
        ("must have shape", torch.ones(6, dtype=torch.bool)),
    ],
)
def test_key_mask(name, match, key_mask):
    with pytest.raises(ValueError, match=f"^key_mask {match}"):
        call(name, **good(), key_mask=key_mask)


@which_take("block_size", "chunk_size")
@pytest.mark.parametrize("bad", [0, -1, 2.5, 4.0, True, "4", None])
def test_sizes(name, argument, bad):
    with pytest.raises(ValueError, match=f"^{argument} must be a positive integer, got {bad!r}$"):
        call(name, **good(), **{argument: bad})


@pytest.mark.parametrize("name", ["lln_attention", "lln_diag_attention", "lln_recurrent"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bad", [3, 96])
def test_chunk_size_of_lln(name, causal, bad):
    setting = {} if name == "lln_recurrent" else {"causal": causal}
    with pytest.raises(ValueError, match=f"^chunk_size must be a power of two, got {bad}$"):
        call(name, **good(), chunk_size=bad, **setting)


@which_take("alpha", "beta", "key_shift")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 1), (2, 4, 6, 5)])
def test_factors(name, argument, causal, shape):
    setting = {argument: torch.ones(shape)}
    if "causal" in inspect.signature(FUNCTIONS[name]).parameters:
        setting["causal"] = causal
    with pytest.raises(ValueError, match=f"^{argument} must broadcast to"):
        call(name, **good(), **setting)


@pytest.mark.parametrize("name", ["lln_attention", "lln_diag_attention"])
@pytest.mark.parametrize(("argument", "heads"), [("alpha", 4), ("beta", 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_factors_of_packed_sequences(name, argument, heads, causal):
    setting = {"cu_seqlens": torch.tensor([0, 2, 4, 6]), "causal": causal}
    with pytest.raises(ValueError, match=f"^{argument} must broadcast to \\(3, {heads}\\)"):
        call(name, **good(batch=1), **setting, **{argument: torch.ones(2, 1)})


@which_take("cu_seqlens")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("match", "cu_seqlens"),
    [
        ("must be int32 or int64", torch.tensor([0.0, 6.0])),
        ("must be int32 or int64", torch.tensor([True, False])),
        ("must rise", torch.tensor([0, 4, 3, 6])),
        ("must rise", torch.tensor([0, 7])),
        ("must rise", torch.tensor([-1, 6])),
        ("must have shape", torch.tensor([[0, 6]])),
        ("must have shape", torch.tensor([0])),
    ],
)
def test_cu_seqlens(name, argument, causal, match, cu_seqlens):
    with pytest.raises(ValueError, match=f"^{argument} {match}"):
        call(name, **good(batch=1), cu_seqlens=cu_seqlens, causal=causal)


@which_take("cu_seqlens")
@pytest.mark.parametrize("shape", [{"batch": 2}, {"batch": 1, "n_k": 7}])
def test_packed_means_one_row_of_self_attention(name, argument, shape):
    with pytest.raises(ValueError, match=f"^{argument} packs self-attention into one row"):
        call(name, **good(**shape), cu_seqlens=torch.tensor([0, 6]))


@each_function
def test_unknown_options(name):
    with pytest.raises(TypeError, match="key_padding_mask"):
        call(name, **good(), key_padding_mask=torch.ones(2, 6, dtype=torch.bool))
