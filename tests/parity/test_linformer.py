import pytest
import torch
from torch.testing import assert_close

import lln

linformer = pytest.importorskip(
    "linformer", reason="needs the extra 'peers': pip install 'lln[peers]'"
)
DIM, HEADS, RANK, LONGEST = 16, 4, 5, 24


def test_linformer():
    peer = linformer.LinformerSelfAttention(DIM, LONGEST, k=RANK, heads=HEADS).double()
    mixer = lln.build("linformer", dim=DIM, heads=HEADS, max_len=LONGEST, rank=RANK).double()
    with torch.no_grad():
        for ours, theirs in (
            (mixer.query, peer.to_q),
            (mixer.key, peer.to_k),
            (mixer.value, peer.to_v),
        ):
            ours.weight.copy_(theirs.weight)
            ours.bias.zero_()
        mixer.out.load_state_dict(peer.to_out.state_dict())
        mixer.core.project_keys.copy_(peer.proj_k.mT)
        mixer.core.project_values.copy_(peer.proj_v.mT)
    lengths = torch.tensor([LONGEST, 11, 1])
    x = torch.randn(3, LONGEST, DIM, dtype=torch.float64)
    out = mixer(x, key_mask=torch.arange(LONGEST) < lengths[:, None])
    # The package knows no padding: each sequence alone.
    for row, n in enumerate(lengths):
        assert_close(out[row, :n], peer(x[row : row + 1, :n])[0], rtol=1e-10, atol=1e-10)
