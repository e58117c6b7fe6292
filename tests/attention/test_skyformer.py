import torch

import lln


def test_many_landmarks_approach_the_gaussian_kernel():
    q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64) / 3
    exact = (-torch.cdist(q, k).square() / 2 / 8**0.5).exp() @ v
    few, many = (
        lln.build_core("skyformer", heads=2, head_dim=8, landmarks=landmarks)(q, k, v)
        for landmarks in (2, 200)
    )
    assert (many - exact).norm() < 0.05 * exact.norm() < (few - exact).norm()


def test_the_seed_decides_until_landmarks_are_redrawn():
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    cores = [lln.build_core("skyformer", heads=2, head_dim=8, landmarks=4) for _ in range(2)]
    before = cores[0](q, k, v)
    assert torch.equal(before, cores[1](q, k, v))
    for core in cores:
        core.redraw(torch.Generator().manual_seed(1))
    assert not torch.equal(before, cores[0](q, k, v))
    assert torch.equal(cores[0](q, k, v), cores[1](q, k, v))
