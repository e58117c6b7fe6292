import math

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from instruments.matrices import AVERAGING, HEADS, alone, build, draw, padded
from lln.instruments import (
    SoftmaxMatrix,
    broad,
    fenton,
    lln_variance,
    log_normality,
    matrix_of,
    narrow,
    softmax_moments,
)


def test_against_scipy():
    matrix = matrix_of(build("softmax"), *draw(50))
    found = log_normality(matrix, rows=50)
    for i in range(2):
        for head in range(HEADS):
            x = matrix.rows(torch.arange(50))[i, head].flatten().log().numpy()
            mean, std = x.mean(), x.std()
            at = (i, head)
            assert found.mean[at].item() == pytest.approx(mean)
            assert found.variance[at].item() == pytest.approx(std**2)
            distance = stats.kstest(x, "norm", args=(mean, std)).statistic
            assert found.kolmogorov_smirnov[at].item() == pytest.approx(distance)
            assert found.excess_kurtosis[at].item() == pytest.approx(stats.kurtosis(x))
            level = (torch.arange(101).double() + 0.5).numpy() / 101
            assert found.normal_quantiles[at].tolist() == pytest.approx(
                stats.norm.ppf(level, mean, std).tolist()
            )
            below = (x[:, None] <= found.quantiles[at].numpy()).mean(0)
            assert below.tolist() == pytest.approx(level.tolist(), abs=1 / 2500)


def test_what_is_log_normal_and_what_is_not():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, 200, 200, generator=generator, dtype=torch.float64)
    normal = log_normality((0.8 * x).exp())
    assert normal.kolmogorov_smirnov.item() < 0.01
    assert abs(normal.excess_kurtosis.item()) < 0.1
    assert_close(normal.variance, torch.full((1, 1), 0.64).double(), rtol=0.02, atol=0)
    uniform = log_normality(torch.rand(1, 1, 200, 200, generator=generator).exp())
    assert uniform.kolmogorov_smirnov.item() > 0.05
    assert uniform.excess_kurtosis.item() == pytest.approx(-1.2, abs=0.05)


def test_proposition_3_1():
    q, k = (torch.randn(1, 4, 2048, 64) for _ in range(2))
    found, expected = log_normality(SoftmaxMatrix(q, k)), softmax_moments(1.0, 2048)
    assert found.variance.mean().item() == pytest.approx(expected.variance.item(), rel=0.03)
    assert found.mean.mean().item() == pytest.approx(expected.mean.item(), rel=0.03)


@pytest.mark.parametrize("name", AVERAGING)
def test_padding_changes_nothing(name):
    core, (q, k) = build(name), draw(batch=1)
    q_padded, k_padded, keep = padded(q, k)
    together = log_normality(matrix_of(core, q_padded, k_padded, key_mask=keep), rows=8).to_dict()
    for i, short in enumerate(alone(q, k)):
        expected = log_normality(matrix_of(core, *short), rows=8).to_dict()
        for field, value in expected.items():
            if "quantiles" in field:  # at ties the quantile may move to the next weight
                continue
            assert together[field][i] == pytest.approx(value[0], abs=1e-7), field


def test_equal_weights_none_and_half_precision():
    found = log_normality(torch.full((1, 2, 3, 7), 1 / 7))
    assert_close(found.mean, torch.full((1, 2), -math.log(7)))
    assert_close(found.variance, torch.zeros(1, 2))
    assert_close(found.kolmogorov_smirnov, torch.zeros(1, 2))
    core, (q, k) = build("lln"), draw()
    nothing = matrix_of(core, q, k, key_mask=torch.zeros(2, 40, dtype=torch.bool))
    for matrix in (nothing, matrix_of(core, q[:, :, :0], k[:, :, :0])):
        for name, value in vars(log_normality(matrix)).items():
            assert not value.any(), name
    one = log_normality(matrix_of(core, q[:, :, :1], k[:, :, :1]))
    assert one.count.eq(1).all()
    assert not any(value.isnan().any() for value in vars(one).values())
    half = log_normality(matrix_of(build("lln", torch.float32), q.bfloat16(), k.bfloat16()))
    assert half.mean.dtype == torch.float32


@pytest.mark.parametrize("count", [2, 64])
def test_fenton_keeps_the_moments_of_the_sum(count):
    """It is the log-normal distribution with the mean and variance of the sum."""
    sigma = torch.tensor([0.2, 0.7, 1.2], dtype=torch.float64)
    found = fenton(sigma, count)
    mean = (found.mean + found.variance / 2).exp()
    assert_close(mean, count * (sigma / 2).exp(), atol=1e-10, rtol=1e-12)
    assert_close(found.variance.expm1() * mean.square(), count * sigma.expm1() * sigma.exp())
    assert_close(fenton(0.5, 1).variance, torch.tensor(0.5).double())


def test_narrow_is_the_variance_of_the_sum_and_not_of_its_logarithm():
    small = 1e-6
    assert_close(narrow(small, 64) / 64**2, fenton(small, 64).variance, rtol=1e-5, atol=0)


def test_lln_variance_is_linear_in_the_variances():
    assert broad(2.0, 0.15, -0.3).item() == pytest.approx(0.0)
    found = lln_variance(2.0, 1.5, 0.5, torch.tensor([1.0, 2.0]), 0.1, -0.2)
    assert found.tolist() == pytest.approx([0.1 * (2 + 2.25) - 0.2, 0.1 * (2 + 4.5) - 0.2])
    moments = softmax_moments(torch.tensor([0.5, 1.0]), 8).to_dict()
    assert moments["mean"] == pytest.approx([-math.log(8) - 0.25, -math.log(8) - 0.5])
