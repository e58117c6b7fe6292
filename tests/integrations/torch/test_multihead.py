"""`lln.MultiheadAttention` is torch's module: with softmax to the last digits, and in its ways."""

import copy
import inspect
import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lln
from integrations.torch.modules import (
    BATCH,
    CORES,
    DIM,
    HEADS,
    N,
    as_kind,
    build,
    later,
    padding,
    twins,
)
from lln.attention import Attention
from lln.registry import entry

MAY_BE_CAUSAL = [
    (name, causal)
    for name in CORES
    for causal in ([False, True] if entry(name).causal else [False])
]

every_core = pytest.mark.parametrize("name", CORES)
every_form = pytest.mark.parametrize(("name", "causal"), MAY_BE_CAUSAL)
# torch would rather have both masks of one type, and takes them all the same.
mixed_masks = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")

MASKS = {
    "none": lambda _: None,
    "causal bool": lambda _: later(),
    "causal float": lambda _: as_kind(later(), "float"),
    "causal 3-D": lambda batch: later().expand(batch * HEADS, -1, -1),
    "empty bool": lambda _: torch.zeros(N, N).bool(),
    "empty float": lambda batch: torch.zeros(batch * HEADS, N, N),
}


@mixed_masks
@pytest.mark.parametrize("layout", ["batch first", "sequence first", "single"])
@pytest.mark.parametrize("padded", [None, "bool", "float"])
@pytest.mark.parametrize("mask", MASKS)
def test_softmax_is_torchs(layout, padded, mask):
    theirs, ours = twins(batch_first=layout == "batch first")
    shape = {
        "batch first": (BATCH, N, DIM),
        "sequence first": (N, BATCH, DIM),
        "single": (N, DIM),
    }[layout]
    x, ignored = torch.randn(shape), padding(padded)
    attn_mask = MASKS[mask](1 if layout == "single" else BATCH)
    if layout == "single" and ignored is not None:
        ignored = ignored[1]
    for need, average in itertools.product([True, False], [True, False]):
        see = {"attn_mask": attn_mask, "need_weights": need, "average_attn_weights": average}
        expected = theirs(x, x, x, ignored, **see)
        found = ours(x, x, x, ignored, **see)
        assert_close(found, expected, atol=1e-6, rtol=0)
        assert found[0].is_contiguous()
        if mask.startswith("causal"):
            assert_close(ours(x, x, x, ignored, is_causal=True, **see), found, atol=0, rtol=0)
            see["attn_mask"] = None  # which saves N², and torch does not take
            assert_close(ours(x, x, x, ignored, is_causal=True, **see), found, atol=0, rtol=0)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 7}, {"vdim": 5}, {"kdim": 7, "vdim": 5}])
@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_is_torchs(sizes, bias):
    theirs, ours = twins(bias=bias, **sizes)
    query = torch.randn(4, BATCH, DIM)
    key = torch.randn(N, BATCH, sizes.get("kdim", DIM))
    value = torch.randn(N, BATCH, sizes.get("vdim", DIM))
    for mask in (None, later(4, N)):
        expected = theirs(query, key, value, padding("bool"), attn_mask=mask)
        found = ours(query, key, value, padding("bool"), attn_mask=mask)
        assert_close(found, expected, atol=1e-6, rtol=0)


def test_gradients_are_torchs():
    theirs, ours = twins()
    x = torch.randn(N, BATCH, DIM)
    for module in (theirs, ours):
        module(x, x, x, padding("bool"), need_weights=False)[0].square().mean().backward()
    for name, parameter in theirs.named_parameters():
        assert_close(ours.get_parameter(name).grad, parameter.grad, atol=1e-6, rtol=0)


def test_signatures_are_torchs():
    theirs = inspect.signature(nn.MultiheadAttention.forward).parameters
    ours = inspect.signature(lln.MultiheadAttention.forward).parameters
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in theirs.values()
    ]
    theirs = inspect.signature(nn.MultiheadAttention).parameters
    ours = inspect.signature(lln.MultiheadAttention).parameters
    assert [(p.name, p.default) for p in list(ours.values())[: len(theirs)]] == [
        (p.name, p.default) for p in theirs.values()
    ]
    assert list(ours)[len(theirs) :] == ["attention", "options"]


def test_a_row_without_keys_is_the_bias_where_torch_has_nan():
    theirs, ours = twins(batch_first=True)
    x, nothing = torch.randn(BATCH, N, DIM), padding("bool", (N, 4, 0))
    assert theirs(x, x, x, nothing)[0][2].isnan().all()
    out, weights = ours(x, x, x, nothing)
    assert_close(out[2], ours.out_proj.bias.expand(N, -1))
    assert not weights[2].any()


@every_form
@pytest.mark.filterwarnings("ignore::lln.matching.UncalibratedWarning")
def test_weights_are_those_of_the_output(name, causal):
    module = build(name).eval()
    x, kept = torch.randn(BATCH, N, DIM), padding("bool")
    if not module.core.linear_in_values:
        with pytest.raises(ValueError, match=f"{name} is not linear .* pass need_weights=False"):
            module(x, x, x)
        assert module(x, x, x, need_weights=False)[0].shape == x.shape
        return
    out, weights = module(x, x, x, kept, is_causal=causal, average_attn_weights=False)
    v = (x @ module.in_proj_weight.chunk(3)[2].T).unflatten(2, (HEADS, -1)).transpose(1, 2)
    expected = module.out_proj((weights @ v).transpose(1, 2).flatten(2))
    assert_close(out, expected, atol=1e-5, rtol=1e-5)
    average = module(x, x, x, kept, is_causal=causal)[1]
    assert_close(average, weights.mean(1))
    assert not weights.requires_grad


def test_learned_shares_weigh_by_their_means():
    module = build(combine="learnable_scale")
    with torch.no_grad():
        module.core.lln_share.fill_(0.25)
        module.core.diag_share.fill_(0.75)
    x = torch.randn(1, N, DIM)
    weights = module(x, x, x)[1]
    assert_close(weights.sum(-1), torch.ones(1, N))
    assert module.core.lln_share.shape == (HEADS, 1, DIM // HEADS)


def test_running_statistics_count_a_call_once():
    running = lln.matching.Matching(statistics="running")
    module = build("lln", matching=running)
    x = torch.randn(BATCH, N, DIM)
    module(x, x, x, need_weights=True)
    assert module.core.matcher.batches == 1


@every_core
def test_padding_reaches_nothing(name):
    module = build(name).eval()
    x, lengths = torch.randn(BATCH, N, DIM), (N, 6, 3)
    junk = x.clone()
    for row, length in zip(junk, lengths, strict=True):
        row[length:] = 1e4
    out = module(junk, junk, junk, padding("bool"), need_weights=False)[0]
    for i, length in enumerate(lengths):
        alone = x[i, :length]
        expected = module(alone, alone, alone, need_weights=False)[0]
        assert_close(out[i, :length], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["lln_diag", "softmax", "hedgehog"])
def test_dropout_leaves_out_whole_keys(name):
    module = build(name, dropout=0.4)
    x = torch.randn(BATCH, N, DIM)
    out, weights = module(x, x, x, average_attn_weights=False)
    whole = module.eval()(x, x, x, average_attn_weights=False)[1]
    dropped = (weights == 0).all(2)  # (B, H, N)
    assert_close(weights, (whole / 0.6).masked_fill(dropped.unsqueeze(2), 0))
    assert 0.2 < dropped.float().mean() < 0.6
    v = (x @ module.in_proj_weight.chunk(3)[2].T).unflatten(2, (HEADS, -1)).transpose(1, 2)
    expected = module.out_proj((weights @ v).transpose(1, 2).flatten(2))
    assert_close(out, expected, atol=1e-5, rtol=1e-5)


@every_core
def test_every_parameter_learns(name):
    module = build(name)
    x = torch.randn(BATCH, N, DIM, requires_grad=True)
    module(x, x, x, padding("bool"), need_weights=False)[0].square().sum().backward()
    for parameter in (x, *module.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["lln_diag", "softmax", "performer"])
def test_dtypes(name, dtype):
    module = build(name, dtype=dtype)
    x = torch.randn(BATCH, N, DIM)
    out, weights = module(*(x.to(dtype),) * 3, padding("float").to(dtype))
    assert out.dtype == weights.dtype == dtype
    expected = module.float()(x, x, x, padding("float"))
    tolerance = 1e-5 if dtype == torch.float64 else 3e-2
    assert_close((out.float(), weights.float()), expected, atol=tolerance, rtol=tolerance)


def test_autocast():
    module, x = build(), torch.randn(BATCH, N, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = module(x, x, x, padding("bool"))
    assert out.dtype == weights.dtype == torch.bfloat16
    expected = module(x, x, x, padding("bool"))
    assert_close((out.float(), weights.float()), expected, atol=3e-2, rtol=3e-2)


def test_a_copy_is_independent():
    module, x = build("hedgehog"), torch.randn(BATCH, N, DIM)
    twin = copy.deepcopy(module)
    assert_close(twin(x, x, x), module(x, x, x), atol=0, rtol=0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert module(x, x, x)[0].any()


def test_it_is_a_module_of_torch_that_names_itself():
    module = build("elu", dropout=0.1)
    assert isinstance(module, nn.MultiheadAttention)
    assert isinstance(module.core, Attention)
    assert "embed_dim=32, num_heads=4, dropout=0.1, batch_first=True" in repr(module)
    assert "EluAttention" in repr(module)
    module._reset_parameters()  # as models do that initialise their layers
    assert module.in_proj_weight.any()
    assert build(device="meta").core.matcher.stored.is_meta
