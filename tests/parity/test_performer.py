"""performer-pytorch, with the same projection.

It adds 1e-4 to every feature, which the paper does not, after taking off the largest logarithm of
the sequence: for keys of unit variance that moves outputs by up to 0.4. Parity is with eps = 0.
"""

import pytest
import torch
from torch.testing import assert_close

import lln

peer = pytest.importorskip(
    "performer_pytorch.performer_pytorch",
    reason="needs the extra 'peers': pip install 'lln[peers]'",
)


def pair(std):
    torch.manual_seed(0)
    core = lln.build_core("performer", heads=2, head_dim=16, features=40)
    q, k, v = torch.randn(3, 2, 2, 50, 16)
    q, k = std * q, std * k
    features = [
        peer.softmax_kernel(x, projection_matrix=core.projection, is_query=is_query, eps=0)
        for x, is_query in ((q, True), (k, False))
    ]
    return core, (q, k, v), (*features, v)


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_attention(std):
    core, inputs, features = pair(std)
    assert_close(core(*inputs), peer.linear_attention(*features), atol=1e-4, rtol=1e-4)


def test_causal_attention():
    core, inputs, features = pair(1.0)
    expected = peer.causal_linear_attention_noncuda(*features, chunk_size=5, eps=0)
    assert_close(core(*inputs, causal=True), expected, atol=1e-4, rtol=1e-4)


def test_projections_are_drawn_alike():
    """Same distribution: blocks of orthogonal rows with lengths of Gaussian vectors."""
    torch.manual_seed(0)
    theirs = peer.gaussian_orthogonal_random_matrix(4000, 8)
    ours = lln.build_core("performer", heads=1, head_dim=8, features=4000).projection
    quantiles = torch.linspace(0.05, 0.95, 10)
    for measure in (lambda x: x.flatten(), lambda x: x.norm(dim=1)):
        assert_close(
            measure(ours).quantile(quantiles), measure(theirs).quantile(quantiles), atol=0.1, rtol=0
        )
