"""Other people's code does what ours does, and without the projections it comes with."""

import pytest
import torch
from torch.testing import assert_close

import lln
from lln.bench import cases
from lln.bench.peers import PEERS, installed

# performer-pytorch compares versions by a class of distutils.
pytestmark = pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning")
N, HEADS, DIM = 512, 2, 16


@pytest.fixture
def peer(request):
    if request.param not in installed():
        pytest.skip("needs the extra 'peers': pip install 'lln[peers]'")
    torch.manual_seed(0)
    return cases.find(request.param).make(HEADS, DIM, N)


@pytest.mark.parametrize("peer", PEERS, indirect=True)
def test_heads_in_heads_out(peer):
    x = cases.inputs(2, HEADS, N, DIM)
    before = [part.detach().clone() for part in x]
    out = peer(x.q, x.k, x.v)
    assert out.shape == x.grad.shape
    for gradient in torch.autograd.grad(out, (x.q, x.k, x.v), x.grad):
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
    for part, was in zip(x, before, strict=True):
        assert_close(part.detach(), was, rtol=0, atol=0)


@pytest.mark.parametrize("peer", ["hf_longformer"], indirect=True)
def test_longformer(peer):
    x = cases.inputs(2, HEADS, N, DIM)
    ours = lln.build_core("longformer", heads=HEADS, head_dim=DIM, window=512)
    assert_close(peer(x.q, x.k, x.v), ours(x.q, x.k, x.v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("peer", ["hf_nystromformer"], indirect=True)
def test_nystromformer(peer):
    x = cases.inputs(2, HEADS, N, DIM)
    peer.peer.init_option = "exact"  # each matrix by itself
    torch.nn.init.zeros_(peer.peer.conv.weight)
    ours = lln.build_core("nystromformer", heads=HEADS, head_dim=DIM, landmarks=64)
    assert_close(peer(x.q, x.k, x.v), ours(x.q, x.k, x.v), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("peer", ["peer_linformer"], indirect=True)
def test_linformer(peer):
    x = cases.inputs(2, HEADS, N, DIM)
    ours = lln.build_core("linformer", heads=HEADS, head_dim=DIM, max_len=N, rank=256)
    with torch.no_grad():
        ours.project_keys.copy_(peer.peer.proj_k.mT)
        ours.project_values.copy_(peer.peer.proj_v.mT)
    assert_close(peer(x.q, x.k, x.v), ours(x.q, x.k, x.v), rtol=1e-4, atol=1e-5)


def test_lengths_that_a_peer_cannot_take():
    with pytest.raises(ValueError, match="takes N in multiples of 512"):
        PEERS["hf_longformer"].make(2, 16, 100)
