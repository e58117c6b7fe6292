"""Longformer of transformers, with the same projections.

Its global attention has projections of its own, which the core has not: they are copies here.
"""

import pytest
import torch
from torch.testing import assert_close

import lln

peer = pytest.importorskip(
    "transformers.models.longformer.modeling_longformer",
    reason="needs the extra 'peers': pip install 'lln[peers]'",
)

WINDOW, LENGTHS = 8, [32, 21]  # the peer takes multiples of the window


@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
def test_attention(global_tokens, masked):
    torch.manual_seed(0)
    config = peer.LongformerConfig(
        hidden_size=32, num_attention_heads=4, attention_window=[WINDOW], num_hidden_layers=1
    )
    theirs = peer.LongformerSelfAttention(config, layer_id=0).double().eval()
    ours = lln.build("longformer", dim=32, heads=4, window=WINDOW, global_tokens=global_tokens)
    ours = ours.double()
    ours.out = torch.nn.Identity()
    for name in ("query", "key", "value"):
        weights = getattr(theirs, name).state_dict()
        getattr(theirs, f"{name}_global").load_state_dict(weights)
        getattr(ours, name).load_state_dict(weights)

    x = torch.randn(2, max(LENGTHS), 32, dtype=torch.float64)
    position = torch.arange(max(LENGTHS)).expand(2, -1)
    key_mask = position < torch.tensor(LENGTHS if masked else [max(LENGTHS)] * 2)[:, None]
    is_global = position < global_tokens
    expected = theirs(
        x,
        # Its code for the kinds of tokens: global 10000, local 0, padding −10000.
        attention_mask=(10000.0 * is_global).masked_fill(~key_mask, -10000),
        is_index_masked=~key_mask,
        is_index_global_attn=is_global,
        is_global_attn=global_tokens > 0,
    )[0]
    actual = ours(x, key_mask=key_mask)
    # Its softmax is in float32 whatever the input.
    assert_close(actual[key_mask], expected[key_mask], rtol=1e-6, atol=1e-6)
