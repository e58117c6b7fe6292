import math

import pytest
import torch
from torch.testing import assert_close

from lln.functional import lln_attention, softmax_attention
from lln.instruments import entropy
from lln.matching import Factors, Matching, calibrate, column_entropy, curve, match, measure
from lln.matching.columns import LARGEST, correct


def naive(q, k, alpha, beta, shift):
    """Σ_c w_c H(B_c) in bits for one sequence and head, from the definition."""
    a = (alpha * q + (beta * (k - shift)).logsumexp(0)).softmax(-1)
    b = (beta * k).softmax(0)
    columns = -(b * b.log2()).sum(0)
    return (a.mean(0) * columns).sum()


def example(n=40, heads=4, kv_heads=2, dim=6, batch=2):
    q, k = torch.randn(batch, heads, n, dim), torch.randn(batch, kv_heads, n, dim)
    alpha, beta = torch.rand(batch, heads) + 1, torch.rand(batch, kv_heads) + 1
    return q, k, Factors(alpha, beta, torch.randn(batch, kv_heads, dim))


def test_it_is_the_entropy_of_the_columns_that_rows_read():
    q, k, found = example()
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
    assert_close(column_entropy(q, k, found), torch.tensor(expected))


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


def calibrated_alone(q, k):
    from lln.matching import factors_of

    matching = Matching()
    return factors_of(curve(matching, q.shape[3]), measure(q, k), matching.center_keys)


def test_the_correction_is_bounded_and_stays_on_the_grid():
    calibrated = curve(Matching(), 8)
    q, k = torch.randn(2, 1, 1, 64, 8)
    k[:, :, 0] = 50  # one key far out: columns are as sharp as they can be
    assert correct(calibrated, measure(q, k), q, k)[0].correction.abs().max() <= LARGEST
    for std in (1e-3, 1e3):
        statistics = measure(std * q, std * torch.randn_like(k))
        assert torch.equal(correct(calibrated, statistics, q, k)[0].correction, torch.zeros(1, 1))


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
        correct(curve(matching, 8), measure(q, k), q, k)
    assert match(matching, q, k).alpha.isfinite().all()
