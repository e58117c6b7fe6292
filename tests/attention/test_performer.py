import math

import pytest
import torch
from torch.testing import assert_close

import lln
from lln.attention.performer import orthogonal_gaussian


def test_projections_are_orthogonal_in_blocks_and_gaussian_in_length():
    projection = orthogonal_gaussian(2000, 16, torch.Generator().manual_seed(0)).double()
    for block in projection.split(16):
        gram = block @ block.mT
        assert_close(gram, gram.diagonal().diag(), atol=1e-4, rtol=0)
    # |ω|² is χ² with 16 degrees of freedom: mean 16, variance 32.
    squares = projection.square().sum(1)
    assert abs(squares.mean() - 16) < 4 * math.sqrt(32 / 2000)
    assert_close(projection.T @ projection / 2000, torch.eye(16).double(), atol=0.1, rtol=0)


def test_more_features_come_closer_to_softmax():
    q, k, v = torch.randn(3, 1, 2, 64, 16)
    q, k = 0.7 * q, 0.7 * k
    exact = lln.build_core("softmax", heads=2, head_dim=16)(q, k, v)

    def error(features):
        draws = [
            lln.build_core("performer", heads=2, head_dim=16, features=features, seed=seed)(q, k, v)
            for seed in range(8)
        ]
        return sum((out - exact).square().mean().sqrt() for out in draws) / 8

    assert error(4096) < 0.35 * error(64)  # 1/8 of it, if the error were variance alone


def test_redrawing_changes_the_projection_and_nothing_else():
    core = lln.build_core("performer", heads=2, head_dim=8)
    first = core.projection.clone()
    core.redraw(torch.Generator().manual_seed(7))
    second = core.projection.clone()
    assert not torch.equal(first, second)
    core.redraw(torch.Generator().manual_seed(7))
    assert torch.equal(core.projection, second)


def test_the_seed_decides_and_the_global_generator_does_not():
    def draw(seed):
        torch.manual_seed(torch.seed() % 1000)
        return lln.build_core("performer", heads=2, head_dim=8, seed=seed).projection

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_features_must_be_positive():
    with pytest.raises(ValueError, match="features must be a positive integer"):
        lln.build_core("performer", heads=2, head_dim=8, features=0)
