"""Which masks `lln.MultiheadAttention` takes, compiled ones included, and what it refuses."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lln
from integrations.torch.modules import BATCH, DIM, HEADS, N, as_kind, build, later, padding, twins

X = torch.randn(BATCH, N, DIM, generator=torch.Generator().manual_seed(0))
BAND = later() | later().T
ONE_HEAD = torch.zeros(BATCH * HEADS, N, N).bool()
ONE_HEAD[0] = later()
BIAS = torch.zeros(N, N).index_fill(1, torch.tensor([3]), -1e9)


@pytest.mark.parametrize(
    ("see", "message"),
    [
        ({"attn_mask": BAND}, "attn_mask must be causal or hide nothing"),
        ({"attn_mask": as_kind(BAND, "float")}, "attn_mask must be causal or hide nothing"),
        ({"attn_mask": later().T}, "attn_mask must be causal or hide nothing"),
        ({"attn_mask": ONE_HEAD}, "attn_mask must be causal or hide nothing"),
        ({"attn_mask": BIAS}, "floating point attn_mask may hold 0 and -inf only"),
        ({"attn_mask": later()[:, :4]}, r"attn_mask must have shape \(10, 10\) or \(12, 10, 10\)"),
        ({"attn_mask": later().expand(BATCH, N, N)}, "attn_mask must have shape"),
        ({"attn_mask": later().int()}, "attn_mask must be bool or floating point"),
        ({"attn_mask": BAND, "is_causal": True}, "says that attn_mask is causal, but it is not"),
        ({"key_padding_mask": BIAS[:BATCH]}, "key_padding_mask may hold 0 and -inf only"),
        ({"key_padding_mask": padding("bool").T}, r"key_padding_mask must have shape \(3, 10\)"),
        ({"key_padding_mask": padding("bool").int()}, "key_padding_mask must be bool"),
    ],
)
def test_other_masks_are_refused(see, message):
    with pytest.raises(ValueError, match=message):
        build("elu")(X, X, X, **see)


def test_causal_of_different_lengths_needs_a_mask():
    module, query = build("elu"), X[:, :4]
    with pytest.raises(ValueError, match="is_causal needs attn_mask where query and key differ"):
        module(query, X, X, is_causal=True)
    out = module(query, X, X, is_causal=True, attn_mask=later(4, N))[0]
    assert_close(out, module(query, X, X, attn_mask=later(4, N))[0], atol=0, rtol=0)
    top_left = torch.ones(4, N).triu(1).bool()  # as scaled_dot_product_attention has it
    with pytest.raises(ValueError, match="attn_mask must be causal"):
        module(query, X, X, attn_mask=top_left)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"add_bias_kv": True}, NotImplementedError, "add_bias_kv and add_zero_attn"),
        ({"add_zero_attn": True}, NotImplementedError, "add_bias_kv and add_zero_attn"),
        ({"attention": "lnl"}, ValueError, "unknown attention 'lnl'; available: "),
        ({"attention": "gau"}, ValueError, "'gau' is a mixer, not a core"),
        ({"blok_size": 4}, ValueError, "'lln_diag' has no option 'blok_size'; valid: block_size"),
        ({"kv_heads": 2}, ValueError, "kv_heads is no option here"),
    ],
)
def test_impossible_modules_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        lln.MultiheadAttention(DIM, HEADS, **arguments)


def test_impossible_calls_are_refused():
    with pytest.raises(ValueError, match=r"key must have shape \(B, N, 32\).* got \(3, 10, 31\)"):
        build("elu")(X, X[..., 1:], X)
    with pytest.raises(ValueError, match=r"value must have shape \(N, B, 32\)"):
        build("elu", batch_first=False)(X, X, X[0])
    with pytest.raises(ValueError, match="batch size 3, got 2"):
        build("elu")(X, X[:2], X[:2])
    with pytest.raises(ValueError, match="reformer makes its keys of the queries"):
        build("reformer")(X, X.clone(), X)
    with pytest.raises(NotImplementedError, match="linformer has no causal form"):
        build("linformer")(X, X, X, is_causal=True)
    with pytest.raises(NotImplementedError, match=r"longformer .* got N_q=4, N_k=10"):
        build("longformer")(X[:, :4], X, X)


def test_nested_tensors_are_refused_but_for_self_attention():
    nested = torch.nested.nested_tensor([X[0], X[1, :4]], layout=torch.jagged)
    for see in ((nested, nested, nested), (nested, X, X)):
        with pytest.raises(ValueError, match="a nested tensor must be query, key and value"):
            build("elu")(*see, need_weights=False)


@pytest.mark.filterwarnings("ignore::lln.matching.UncalibratedWarning")
@pytest.mark.parametrize(
    ("name", "kind", "causal"),
    [
        ("lln_diag", "bool", None),
        ("lln_diag", None, "no mask"),
        ("softmax", "float", "no mask"),
        ("softmax", "float", "mask"),
    ],
)
def test_compiled_in_one_graph(name, kind, causal):
    torch.compiler.reset()
    module = build(name)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    see = {"need_weights": False, "is_causal": causal is not None}
    if causal == "mask":
        see["attn_mask"] = as_kind(later(), "float")
    expected = module(X, X, X, padding(kind), **see)[0]
    assert_close(compiled(X, X, X, padding(kind), **see)[0], expected)


def test_compiled_masks_are_still_checked():
    torch.compiler.reset()
    compiled = torch.compile(build("elu"), fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="says that attn_mask is causal, but it is not"):
        compiled(X, X, X, need_weights=False, is_causal=True, attn_mask=BAND)
    with pytest.raises(RuntimeError, match="key_padding_mask may hold 0 and -inf only"):
        compiled(X, X, X, BIAS[:BATCH], need_weights=False)
    with pytest.raises(Exception, match="attn_mask cannot be read while compiling"):
        compiled(X, X, X, need_weights=False, attn_mask=later())


def test_the_future_does_not_reach_the_past():
    module = build()
    with lln.matching.calibrating(module), torch.no_grad():
        module(X, X, X, is_causal=True, need_weights=False)
    changed = X.clone()
    changed[:, 6:] += 1
    before, after = (module(x, x, x, is_causal=True, need_weights=False)[0] for x in (X, changed))
    assert_close(after[:, :6], before[:, :6], atol=0, rtol=0)
    assert (after[:, 6:] != before[:, 6:]).any()


def test_queries_and_keys_of_different_lengths():
    theirs, _ = twins(batch_first=True)
    for name in ("lln", "lln_diag", "block_diag", "elu", "performer", "hedgehog"):
        module = lln.MultiheadAttention.from_torch(theirs, name)
        out, weights = module(X[:, :4], X, X, padding("bool"))
        assert out.shape == (BATCH, 4, DIM)
        assert weights.shape == (BATCH, 4, N)
        assert not weights.masked_select(padding("bool")[:, None]).any()


def test_from_torch_refuses_what_it_cannot_copy():
    with pytest.raises(NotImplementedError, match="add_bias_kv"):
        lln.MultiheadAttention.from_torch(nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True))
