import math

import pytest
import torch
from torch.testing import assert_close

from lln.functional import lln_attention, softmax_attention
from lln.instruments import entropy
from lln.matching import Factors, Matching, calibrate, column_entropy, curve, match, measure
from lln.matching.columns import LARGEST, _of_all, correct
from lln.matching.moments import SAMPLE, WHOLE
from lln.matching.statistics import sample


def naive(q, k, alpha, beta, shift):
    """Σ_c w_c H(B_c) in bits for one sequence and head, from the definition."""
    a = (alpha * q + (beta * (k - shift)).logsumexp(0)).softmax(-1)
    b = (beta * k).softmax(0)
    columns = -torch.special.xlogy(b, b).sum(0) / math.log(2)
    return (a.mean(0) * columns).sum()


def example(n=40, heads=4, kv_heads=2, dim=6, batch=2):
    q, k = torch.randn(batch, heads, n, dim), torch.randn(batch, kv_heads, n, dim)
    alpha, beta = torch.rand(batch, heads) + 1, torch.rand(batch, kv_heads) + 1
    return q, k, Factors(alpha, beta, torch.randn(batch, kv_heads, dim))


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("offset", [0, -100, 1000])
def test_it_is_the_entropy_of_the_columns_that_rows_read(scale, offset):
    q, k, found = example()
    q, k, found = q.double(), (scale * k + offset).double(), Factors(*(x.double() for x in found))
    expected = [
        [
            naive(
                q[b, h],
                k[b, h // 2],
                found.alpha[b, h],
                found.beta[b, h // 2],
                found.key_shift[b, h // 2],
            )
            for h in range(4)
        ]
        for b in range(2)
    ]
    assert_close(column_entropy(q, k, found), torch.tensor(expected, dtype=torch.float64))


def test_padding_does_not_count():
    q, k, found = example()
    keep = torch.rand(2, 40) > 0.4
    padded = [x.masked_fill(~keep[:, None, :, None], 1e4) for x in (q, k)]
    actual = column_entropy(*padded, found, key_mask=keep)
    for i in range(2):
        alone = Factors(*(x[i : i + 1] for x in found))
        part = (x[i : i + 1, :, keep[i]] for x in (q, k))
        assert_close(actual[i : i + 1], column_entropy(*part, alone))


def test_packed_sequences_are_measured_one_by_one():
    q, k, _ = example(n=150, batch=1)
    bounds = [0, 20, 20, 141]
    found = Factors(torch.rand(3, 4) + 1, torch.rand(3, 2) + 1, torch.randn(3, 2, 6))
    actual = column_entropy(q, k, found, cu_seqlens=torch.tensor(bounds))
    for row, (lo, hi) in {0: (0, 20), 2: (20, 141)}.items():
        alone = Factors(*(x[row : row + 1] for x in found))
        assert_close(actual[row : row + 1], column_entropy(q[:, :, lo:hi], k[:, :, lo:hi], alone))
    assert actual.isfinite().all()


def test_a_fully_padded_sequence_is_finite():
    q, k, found = example()
    keep = torch.tensor([[False] * 40, [True] * 40])
    assert column_entropy(q, k, found, key_mask=keep).isfinite().all()


def test_the_correction_makes_draws_agree():
    """What remains of LLN's entropy minus softmax's varies less than half as much without it."""
    q, k = 1.5 * torch.randn(2, 24, 1, 256, 32).double()
    identity = torch.eye(256, dtype=torch.float64).expand(24, 1, 256, 256)
    softmax = entropy(softmax_attention(q, k, identity)).bits

    def difference(alpha, beta, shift):
        p = lln_attention(q, k, identity, alpha, beta, key_shift=shift)
        return entropy(p).bits - softmax

    corrected = difference(*match("entropy", q, k))
    found = calibrated_alone(q, k)
    plain = difference(*found)
    assert corrected.std() < 0.5 * plain.std()
    assert abs(corrected.mean()) < 0.1


def rows_entropy(q, k, found):
    """The entropy of some rows of LLN's P and of softmax's, `(B, H)` each."""
    alpha, beta = found.alpha[..., None, None], found.beta[..., None, None]
    q, k, shift = q[:, :, ::64], k, found.key_shift.unsqueeze(2)
    z = (beta * (k - shift)).logsumexp(-2, keepdim=True)
    p = (alpha * q + z).softmax(-1) @ (beta * (k - shift) - z).exp().mT
    softmax = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return entropy(p).bits, entropy(softmax).bits


@pytest.mark.parametrize(("std", "most"), [(0.8, 0.02), (1.0, 0.04), (1.5, 0.5)])
def test_a_sample_of_a_long_sequence_matches_its_entropy(std, most):
    """Its mean as well as all tokens would; single heads by `most` bits on average."""
    q, k = std * torch.randn(2, 1, 32, 4 * WHOLE, 32)
    found, softmax = rows_entropy(q, k, match("entropy", q, k))
    assert abs((found - softmax).mean()) < 0.1
    assert (found - softmax).abs().mean() < most


def test_a_sample_notices_heavy_tails():
    q, k = torch.distributions.Laplace(0.0, 0.7).sample((2, 1, 8, 4 * WHOLE, 32))
    found, softmax = rows_entropy(q, k, match("entropy", q, k))
    assert (found - softmax).abs().mean() < 1
    plain, _ = rows_entropy(q, k, calibrated_alone(q, k))
    assert (plain - softmax).mean() < -3


def test_no_more_than_a_sample_of_a_long_sequence_is_read():
    q, k = torch.randn(2, 1, 2, WHOLE + 1, 8)
    expected = match("entropy", q, k)
    n = WHOLE + 1
    read = torch.zeros(n, dtype=torch.bool)
    read[torch.arange(SAMPLE) * n // SAMPLE] = True
    q[:, :, ~read], k[:, :, ~read] = torch.nan, torch.nan
    for found, before in zip(match("entropy", q, k), expected, strict=True):
        assert torch.equal(found, before)
    whole = match("entropy", q[:, :, :-1], k[:, :, :-1])  # all of which is read
    assert all(x.isnan().all() for x in whole)


def test_a_part_speaks_for_all_keys_by_its_share_or_by_its_distribution():
    small, large = torch.tensor([1e-4, -1e-4]), torch.tensor([0.6, -0.6])
    part = torch.tensor([0.25])
    assert_close(_of_all(small, part), small / 4, rtol=1e-3, atol=0)
    assert_close(_of_all(large, part), large, rtol=0.03, atol=0)
    every = torch.linspace(-LARGEST, LARGEST, 101)
    assert_close(_of_all(every, torch.ones(1)), every)
    assert (_of_all(every, part).diff() > 0).all()


def calibrated_alone(q, k):
    from lln.matching import factors_of

    matching = Matching()
    return factors_of(curve(matching, q.shape[3]), measure(q, k), matching.center_keys)


def test_the_correction_is_bounded_and_stays_on_the_grid():
    calibrated = curve(Matching(), 8)
    q, k = torch.randn(2, 1, 1, 64, 8)
    k[:, :, 0] = 50  # one key far out: columns are as sharp as they can be
    measured = sample(q, k, None, None)
    found, _ = correct(calibrated, measure(q, k), measured, True)
    assert found.correction.abs().max() <= LARGEST
    for std in (1e-3, 1e3):
        statistics = measure(std * q, std * torch.randn_like(k))
        found, _ = correct(calibrated, statistics, measured, True)
        assert torch.equal(found.correction, torch.zeros(1, 1))


def test_calibration_knows_the_columns():
    found = calibrate(8, (64,), draws=4)
    columns = [math.log2(64) / (1 + math.exp(s)) for s in found.columns[0]]
    assert 5.9 < columns[0] < math.log2(64)
    assert 0 < columns[-1] < 1
    assert columns == sorted(columns, reverse=True)


@pytest.mark.parametrize("target", ["variance", "linear"])
def test_other_targets_are_not_corrected(target):
    q, k = torch.randn(2, 1, 1, 64, 8)
    matching = Matching(target=target)
    with pytest.raises(ValueError, match="only the entropy target"):
        correct(curve(matching, 8), measure(q, k), sample(q, k, None, None), True)
    assert match(matching, q, k).alpha.isfinite().all()
