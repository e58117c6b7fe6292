"""local-attention, whose exact windows are those of Longformer without global tokens."""

import pytest
import torch
from torch.testing import assert_close

import lln

peer = pytest.importorskip(
    "local_attention", reason="needs the extra 'peers': pip install 'lln[peers]'"
)

HALF = 8


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_exact_windows(causal, masked):
    torch.manual_seed(0)
    theirs = peer.LocalAttention(
        HALF, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False
    )
    ours = lln.build_core("longformer", heads=4, head_dim=16, window=2 * HALF)
    q, k, v = torch.randn(3, 2, 4, 40, 16, dtype=torch.float64)
    key_mask = torch.arange(40) < torch.tensor([[40], [27 if masked else 40]])
    actual = ours(q, k, v, key_mask=key_mask, causal=causal)
    expected = theirs(q, k, v, mask=key_mask)
    real = key_mask[:, None, :, None]
    assert_close(actual.where(real, 0), expected.where(real, 0), rtol=1e-12, atol=1e-12)
