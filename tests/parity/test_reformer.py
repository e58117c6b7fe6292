"""Reformer against the LSH attention of Hugging Face.

The package cuts the sorted sequence into chunks and does not look at buckets again, so it is
compared where each bucket is one chunk: two buckets, and pairs of tokens x and −x, of which a
rotation always sends one into each.
"""

import pytest
import torch
from torch.testing import assert_close

from lln.attention import MultiHead
from lln.attention.reformer import ReformerAttention

pytest.importorskip("transformers", reason="needs the extra 'peers': pip install 'lln[peers]'")
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

HEADS, HEAD_DIM, CHUNK = 3, 8, 16
DIM = HEADS * HEAD_DIM


def build(rounds, causal):
    config = ReformerConfig(
        num_attention_heads=HEADS,
        attention_head_size=HEAD_DIM,
        hidden_size=DIM,
        num_buckets=2,
        num_hashes=rounds,
        lsh_attn_chunk_length=CHUNK,
        lsh_num_chunks_before=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
        hash_seed=5,
    )
    peer = LSHSelfAttention(config).double()
    core = ReformerAttention(HEADS, HEAD_DIM, buckets=2, chunk_size=CHUNK, rounds=rounds)
    mixer = MultiHead(core, DIM, bias=False).double()
    with torch.no_grad():
        mixer.query.weight.copy_(peer.query_key.weight)
        mixer.value.weight.copy_(peer.value.weight)
        mixer.out.weight.copy_(torch.eye(DIM))
        torch.manual_seed(config.hash_seed)  # as the package does, at each call
        drawn = torch.randn(HEADS, HEAD_DIM, rounds, 1, dtype=torch.float64)
        core.rotations.copy_(drawn.transpose(1, 2))
    return peer, mixer


def pairs(x):
    """`(B, N, C)` → `(B, 2 · N, C)`: x and −x, shuffled."""
    return torch.cat([x, -x], 1)[:, torch.randperm(2 * x.shape[1])]


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_one_round(causal):
    peer, mixer = build(1, causal)
    x = pairs(torch.randn(2, CHUNK, DIM, dtype=torch.float64))
    expected = peer(x).hidden_states
    assert_close(mixer(x, causal=causal), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_padding(causal):
    peer, mixer = build(1, causal)
    x = pairs(torch.randn(2, CHUNK, DIM, dtype=torch.float64))
    x = torch.cat([x, torch.randn(2, CHUNK, DIM, dtype=torch.float64)], 1)
    key_mask = (torch.arange(3 * CHUNK) < 2 * CHUNK).expand(2, -1)
    expected = peer(x, attention_mask=key_mask).hidden_states
    actual = mixer(x, key_mask=key_mask, causal=causal)
    assert_close(actual[key_mask], expected[key_mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_rounds(causal):
    peer, mixer = build(3, causal)
    # The package counts a key once for each round in which it is met, the paper once in all. They
    # agree where all rounds meet the same keys: here, those close to one direction.
    x = torch.randn(2, 1, DIM, dtype=torch.float64)
    x = pairs(x + 0.01 * torch.randn(2, CHUNK, DIM, dtype=torch.float64))
    expected = peer(x).hidden_states
    assert_close(mixer(x, causal=causal), expected, rtol=1e-12, atol=1e-12)
