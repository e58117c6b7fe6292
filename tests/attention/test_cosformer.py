import pytest
import torch

import lln


def test_the_causal_form_needs_a_length_that_the_future_cannot_change():
    q = torch.randn(1, 2, 10, 8)
    core = lln.build_core("cosformer", heads=2, head_dim=8)
    assert core(q, q, q).isfinite().all()
    with pytest.raises(ValueError, match="cosformer needs max_len for its causal form"):
        core(q, q, q, causal=True)
    with pytest.raises(ValueError, match=r"cosformer was built for max_len=9, got N=10"):
        lln.build_core("cosformer", heads=2, head_dim=8, max_len=9)(q, q, q)


def test_weights_fall_with_distance_to_zero_at_the_far_end():
    core = lln.build_core("cosformer", heads=1, head_dim=1).double()
    ones = torch.ones(1, 1, 50, 1, dtype=torch.float64)
    row = core(ones, ones, torch.eye(50, dtype=torch.float64)[None, None])[0, 0, 0]
    assert (row.diff() < 0).all()
    assert row[-1] < row[0] / 30
