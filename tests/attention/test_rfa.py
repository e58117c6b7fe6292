import torch
from torch.testing import assert_close

import lln


def test_many_features_are_a_gaussian_kernel_of_directions():
    core = lln.build_core("rfa", heads=1, head_dim=8, features=20000).double()
    q, k, v = torch.randn(3, 1, 1, 30, 8, dtype=torch.float64)
    x, y = (z / z.norm(dim=-1, keepdim=True) for z in (q, k))
    weight = (-torch.cdist(x, y).square() / 2).exp()
    assert_close(core(q, k, v), weight / weight.sum(-1, keepdim=True) @ v, atol=0.02, rtol=0)


def test_redrawing_changes_the_frequencies():
    core = lln.build_core("rfa", heads=2, head_dim=8)
    first = core.frequencies.clone()
    core.redraw(torch.Generator().manual_seed(1))
    assert not torch.equal(core.frequencies, first)
