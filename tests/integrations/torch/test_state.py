"""State dicts of torch and of `lln.MultiheadAttention`, and one made of the other."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lln
from integrations.torch.modules import BATCH, DIM, HEADS, N, build, twins
from lln.matching import Matching

X = torch.randn(BATCH, N, DIM, generator=torch.Generator().manual_seed(0))
FREE = ["softmax", "lln", "lln_diag", "block_diag", "elu", "performer", "reformer"]


@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 5}, {"bias": False}])
def test_keys_and_shapes_are_torchs(sizes):
    theirs, ours = twins(**sizes)
    assert {name: x.shape for name, x in ours.state_dict().items()} == {
        name: x.shape for name, x in theirs.state_dict().items()
    }
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 5}, {"bias": False}])
def test_torchs_state_loads_strictly(name, sizes):
    theirs = nn.Sequential(nn.MultiheadAttention(DIM, HEADS, **sizes), nn.Linear(2, 2))
    ours = nn.Sequential(build(name, **sizes), nn.Linear(2, 2))
    before = ours[0].core.state_dict()
    assert ours.load_state_dict(theirs.state_dict(), strict=True) == ([], [])
    for key, x in theirs.state_dict().items():
        assert_close(ours.state_dict()[key], x, atol=0, rtol=0)
    assert_close(ours[0].core.state_dict(), before, atol=0, rtol=0)


@pytest.mark.parametrize("assign", [False, True])
def test_calibrated_statistics_survive_torchs_state(assign):
    module = build("lln")
    with lln.matching.calibrating(module), torch.no_grad():
        module(X, X, X, need_weights=False)
    stored = module.core.matcher.stored.clone()
    state = nn.MultiheadAttention(DIM, HEADS).state_dict()
    module.load_state_dict(state, assign=assign)
    assert_close(module.core.matcher.stored, stored, atol=0, rtol=0)
    assert set(state) == {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}


def test_a_core_that_learns_is_missed():
    state = nn.MultiheadAttention(DIM, HEADS).state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "core\.'):
        build("hedgehog").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'"core.lln_share"'):
        build(combine="learnable_ratio").load_state_dict(state)


def test_a_state_with_half_a_core_is_refused():
    module = build("lln")
    state = module.state_dict()
    del state["core.matcher.stored"]
    with pytest.raises(RuntimeError, match=r'"core.matcher.stored"'):
        module.load_state_dict(state)


@pytest.mark.parametrize("name", ["hedgehog", "lln_diag", "linformer"])
def test_round_trip(name):
    first, second = build(name), build(name)
    if name == "lln_diag":
        with lln.matching.calibrating(first), torch.no_grad():
            first(X, X, X, need_weights=False)
    second.load_state_dict(first.state_dict())
    causal = name == "lln_diag"
    outputs = [m(X, X, X, need_weights=False, is_causal=causal)[0] for m in (first, second)]
    assert_close(*outputs, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["softmax", "lln_diag", "hedgehog"])
def test_from_torch_copies(name):
    theirs = nn.MultiheadAttention(DIM, HEADS, 0.1, kdim=7, batch_first=True, dtype=torch.float64)
    theirs.eval().k_proj_weight.requires_grad_(False)
    ours = lln.MultiheadAttention.from_torch(theirs, name)
    assert (ours.dropout, ours.batch_first, ours.training, ours.kdim) == (0.1, True, False, 7)
    assert not ours.k_proj_weight.requires_grad
    assert ours.q_proj_weight.requires_grad
    with torch.no_grad():
        ours.q_proj_weight.zero_()
    assert theirs.q_proj_weight.any()
    assert {x.dtype for x in ours.parameters()} == {torch.float64}


def test_from_torch_exchanges_our_attention_too():
    first = build("hedgehog")
    second = lln.MultiheadAttention.from_torch(first, "lln_diag", block_size=4)
    assert second.core.block_size == 4
    assert_close(second.in_proj_weight, first.in_proj_weight)


def test_replace_goes_through_a_model():
    shared = nn.MultiheadAttention(DIM, HEADS)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU())})
    assert lln.MultiheadAttention.replace(model, "elu") is model
    assert model["a"] is model["b"][0]
    assert model["a"].core.name == "elu"
    with pytest.raises(ValueError, match=r"ReLU has no nn.MultiheadAttention within"):
        lln.MultiheadAttention.replace(nn.ReLU())
    with pytest.raises(ValueError, match="from_torch converts a module that is one"):
        lln.MultiheadAttention.replace(shared)


def test_replace_changes_all_or_nothing():
    last = nn.MultiheadAttention(DIM, HEADS, add_zero_attn=True)
    model = nn.Sequential(nn.MultiheadAttention(DIM, HEADS), last)
    with pytest.raises(NotImplementedError, match="add_zero_attn"):
        lln.MultiheadAttention.replace(model)
    assert [type(module) for module in model] == [nn.MultiheadAttention] * 2


def test_replace_chooses_for_cross_attention():
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 16)
    lln.MultiheadAttention.replace(layer, "lln_diag", block_size=4, max_len=N)
    assert layer.self_attn.core.matcher.matching.statistics == "auto"
    assert layer.self_attn.core.block_size == 4
    assert layer.multihead_attn.core.name == "lln"
    assert layer.multihead_attn.core.matcher.matching.statistics == "frozen"
    running = Matching(statistics="running", target="variance")
    lln.MultiheadAttention.replace(layer, "lln", matching=running)
    assert layer.multihead_attn.core.matcher.matching == running
    for name in ("block_diag", "longformer"):
        with pytest.raises(NotImplementedError, match=f"{name} attends within one sequence"):
            lln.MultiheadAttention.replace(layer, name)
    assert layer.self_attn.core.name == "lln"
