"""Nyströmformer against two published implementations.

Both take the means of segments over padding too, so padded batches are compared with what they give
for each sequence alone.
"""

import pytest
import torch
from torch.testing import assert_close

import lln

NEEDS_PEERS = "needs the extra 'peers': pip install 'lln[peers]'"
DIM, LANDMARKS, CONV = 16, 6, 5


def ours(heads, query, key, value, conv, out=None):
    """A mixer with the weights of the peer's modules."""
    mixer = lln.build(
        "nystromformer", dim=DIM, heads=heads, landmarks=LANDMARKS, conv=CONV
    ).double()
    with torch.no_grad():
        for parameter in (mixer.query.bias, mixer.key.bias, mixer.value.bias):
            parameter.zero_()
        for module, weight in ((mixer.query, query), (mixer.key, key), (mixer.value, value)):
            module.weight.copy_(weight)
        mixer.core.conv.weight.copy_(conv)
        mixer.out.load_state_dict(out or {"weight": torch.eye(DIM), "bias": torch.zeros(DIM)})
    return mixer


def assert_padded_rows_are_what_the_peer_gives_alone(mixer, peer, lengths):
    longest = max(lengths)
    x = torch.randn(len(lengths), longest, DIM, dtype=torch.float64)
    key_mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    out = mixer(x, key_mask=key_mask)
    for row, n in enumerate(lengths):
        assert_close(out[row, :n], peer(x[row : row + 1, :n])[0], rtol=1e-10, atol=1e-10)


def test_nystrom_attention():
    package = pytest.importorskip("nystrom_attention", reason=NEEDS_PEERS)
    # One head: the package starts its inverse from the largest norm of all heads and sequences.
    peer = package.NystromAttention(
        DIM, dim_head=DIM, heads=1, num_landmarks=LANDMARKS, residual_conv_kernel=CONV
    ).double()
    mixer = ours(1, *peer.to_qkv.weight.chunk(3), peer.res_conv.weight, peer.to_out[0].state_dict())
    # Longer than the landmarks, where the package has no exact form, and a multiple of them, where
    # it pads with zeros.
    assert_padded_rows_are_what_the_peer_gives_alone(mixer, peer, [24, 12, 30, 18])


@pytest.mark.parametrize("n", [LANDMARKS, 18, 24])
def test_transformers(n):
    pytest.importorskip("transformers", reason=NEEDS_PEERS)
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = NystromformerConfig(
        hidden_size=DIM,
        num_attention_heads=4,
        num_landmarks=LANDMARKS,
        segment_means_seq_len=n,
        conv_kernel_size=CONV,
        attention_probs_dropout_prob=0.0,
    )
    peer = NystromformerSelfAttention(config).double()
    peer.init_option = "exact"  # each matrix by itself; the configuration cannot say so
    for linear in (peer.query, peer.key, peer.value):
        torch.nn.init.zeros_(linear.bias)
    mixer = ours(4, peer.query.weight, peer.key.weight, peer.value.weight, peer.conv.weight)
    assert_padded_rows_are_what_the_peer_gives_alone(mixer, lambda x: peer(x)[0], [n, n])
