import math

import pytest
import torch
from torch.testing import assert_close

from lln.matching import measure, measure_batch


def inputs(n=30, heads=4, kv_heads=2, dim=6):
    q = 2 * torch.randn(2, heads, n, dim) + torch.randn(heads, 1, dim)
    k = 3 * torch.randn(2, kv_heads, n, dim) - torch.arange(dim)
    return q, k


def test_scores_have_the_exact_within_row_variance():
    q, k = inputs()
    scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(6)
    expected = scores.var(-1, correction=0).mean(-1)
    assert_close(measure(q, k).score_var, expected)
    assert_close(measure(q, k, scale=0.5).score_var, expected * 6 / 4)
    assert_close(measure(q, k, center_keys=False).score_var, expected)


def test_elements_have_the_variance_of_torch():
    q, k = inputs()
    found = measure(q, k, exact_scores=False, center_keys=False)
    assert_close(found.query_var, q.var((-2, -1)))
    assert_close(found.key_var, k.var((-2, -1)))
    assert_close(found.score_var, q.var((-2, -1)) * k.var((-2, -1)).repeat_interleave(2, 1))
    assert torch.equal(found.key_mean, torch.zeros_like(found.key_mean))
    assert_close(measure(q, k, center_keys=False).query_var, q.var((-2, -1)))
    assert_close(measure(q, k, center_keys=False).key_var, k.var((-2, -1)))


def test_centred_keys_are_measured_about_their_mean():
    q, k = inputs()
    found = measure(q, k)
    assert_close(found.key_mean, k.mean(-2))
    assert_close(found.key_var, k.var(-2, correction=0).mean(-1))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_padding_does_not_count(exact, centred):
    q, k = inputs()
    keep = torch.rand(2, 30) > 0.4
    how = {"exact_scores": exact, "center_keys": centred}
    found = measure(
        q.masked_fill(~keep[:, None, :, None], torch.nan),
        k.masked_fill(~keep[:, None, :, None], torch.nan),
        key_mask=keep,
        **how,
    )
    for i in range(2):
        alone = measure(q[i : i + 1, :, keep[i]], k[i : i + 1, :, keep[i]], **how)
        for a, b in zip(found, alone, strict=True):
            assert_close(a[i : i + 1], b)


@pytest.mark.parametrize("exact", [True, False])
def test_packed_sequences_are_measured_one_by_one(exact):
    q, k = (x[:1] for x in inputs(150))
    keep = torch.rand(1, 150) > 0.2
    bounds = [0, 20, 20, 141]
    found = measure(q, k, key_mask=keep, cu_seqlens=torch.tensor(bounds), exact_scores=exact)
    for row, (lo, hi) in {0: (0, 20), 2: (20, 141)}.items():
        part = (q[:, :, lo:hi], k[:, :, lo:hi])
        alone = measure(*part, key_mask=keep[:, lo:hi], exact_scores=exact)
        for a, b in zip(found, alone, strict=True):
            assert_close(a[row : row + 1], b)
    assert all(x.isfinite().all() for x in found)  # the empty sequence too


def test_batch_is_one_standard_deviation_for_all():
    q, k = inputs()
    found = measure_batch(q, k)
    assert_close(found.query_var.sqrt(), q.std().view(1, 1))
    assert_close(found.key_var.sqrt(), k.std().view(1, 1))
    assert_close(found.log_keys, torch.tensor([[math.log(30)]]))
    keep = torch.rand(2, 30) > 0.4
    masked = measure_batch(q, k, key_mask=keep)
    assert_close(masked.query_var, q.transpose(1, 2)[keep].var().view(1, 1))
    assert_close(masked.log_keys, (keep.sum() / 2).log().view(1, 1))


def test_half_precision_is_measured_in_float32():
    q, k = (x.to(torch.bfloat16) for x in inputs())
    found = measure(q, k)
    expected = measure(q.float(), k.float())
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_statistics_are_constants_for_autograd():
    q, k = (x.requires_grad_() for x in inputs())
    assert not any(x.requires_grad for x in measure(q, k))
