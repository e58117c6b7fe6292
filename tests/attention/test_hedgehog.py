import torch
from torch.testing import assert_close

import lln


def test_it_starts_as_lln_of_both_signs():
    q, k, v = torch.randn(3, 2, 4, 20, 8)
    hedgehog = lln.build_core("hedgehog", heads=4, head_dim=8)
    doubled = (torch.cat([x, -x], -1) for x in (q, k))
    assert_close(hedgehog(q, k, v), lln.lln_attention(*doubled, v, alpha=1.0, beta=1.0))
