import math
from functools import partial

import pytest
import torch

from lln.functional import lln_attention, softmax_attention
from lln.instruments import (
    entropy,
    lln_spectral_gap,
    row_entropy,
    spectral_gap,
    spectral_gap_of,
)

LLN = partial(lln_attention, alpha=1.7, beta=2.1)
ATTENTIONS = {"softmax": softmax_attention, "lln": LLN}


def inputs(n=96, d=8, heads=3, dtype=torch.float64, std=1.5):
    return std * torch.randn(2, 2, heads, n, d, dtype=dtype)


def matrix(attend, q, k):
    """P by its definition: attention over the unit vectors."""
    n = k.shape[2]
    return attend(q, k, torch.eye(n, dtype=k.dtype).expand(*k.shape[:2], n, n))


def mask(n, kept):
    return torch.arange(n).expand(2, n) < torch.tensor(kept)[:, None]


def test_entropy_of_known_rows():
    p = torch.tensor([[[[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 1, 0, 0]]]])
    torch.testing.assert_close(entropy(p), torch.tensor([[(1 + 2 + 0) / 3]]))


def test_entropy_in_half_precision_is_computed_in_float32():
    p = torch.full((1, 1, 4, 1000), 1e-3, dtype=torch.bfloat16)
    expected = -1000 * p[0, 0, 0, 0].float() * p[0, 0, 0, 0].float().log2()
    torch.testing.assert_close(entropy(p), expected.view(1, 1))


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("block", [1, 40, 96, 500])
def test_row_entropy_is_the_entropy_of_the_dense_matrix(name, block):
    q, k = inputs()
    dense = entropy(matrix(ATTENTIONS[name], q, k))
    torch.testing.assert_close(row_entropy(ATTENTIONS[name], q, k, block=block), dense)


def test_row_entropy_of_masked_and_causal_attention():
    q, k = inputs()
    for options in ({"key_mask": mask(96, [96, 1])}, {"causal": True}):
        attend = partial(softmax_attention, **options)
        torch.testing.assert_close(row_entropy(attend, q, k), entropy(matrix(attend, q, k)))


def test_row_entropy_of_a_sample():
    q, k = inputs()
    p = matrix(LLN, q, k)
    sample = row_entropy(LLN, q, k, rows=20, seed=3)
    drawn = torch.randperm(96, generator=torch.Generator().manual_seed(3))[:20]
    torch.testing.assert_close(sample, entropy(p[:, :, drawn]))
    torch.testing.assert_close(row_entropy(LLN, q, k, rows=96), entropy(p))
    assert (sample - row_entropy(LLN, q, k, rows=20, seed=4)).abs().min() > 0


def test_spectral_gap_of_known_matrices():
    two_states = torch.tensor([[0.9, 0.1], [0.3, 0.7]])  # eigenvalues 1 and 0.6
    three_cycle = torch.eye(3).roll(1, 0)  # all eigenvalues have modulus 1
    for p, gap in (
        (two_states, 0.4),
        (three_cycle, 0.0),
        (torch.eye(5), 0.0),
        (torch.full((5, 5), 0.2), 1.0),
        (torch.ones(1, 1), 1.0),
    ):
        expected = torch.tensor([[gap]], dtype=torch.float64)
        torch.testing.assert_close(spectral_gap(p[None, None]), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_spectral_gap_is_about_the_second_eigenvalue(name):
    p = matrix(ATTENTIONS[name], *inputs())
    moduli = torch.linalg.eigvals(p).abs().sort(-1, descending=True).values
    torch.testing.assert_close(spectral_gap(p), 1 - moduli[..., 1])


@pytest.mark.parametrize(("n", "d"), [(1, 8), (5, 8), (96, 8), (96, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_lln_spectral_gap_is_that_of_the_dense_matrix(n, d, masked):
    q, k = inputs(n, d)
    key_mask = mask(n, [n, (n + 1) // 2]) if masked else None
    alpha, beta = torch.rand(2, 3).double() + 1, torch.rand(2, 3).double() + 1
    shift = torch.randn(2, 3, d, dtype=torch.float64)
    attend = partial(lln_attention, alpha=alpha, beta=beta, key_mask=key_mask, key_shift=shift)
    dense = spectral_gap(matrix(attend, q, k))
    if masked:  # what stands at padding is nobody's business
        q, k = (x.masked_fill(~key_mask[:, None, :, None], torch.nan) for x in (q, k))
    measured = lln_spectral_gap(q, k, alpha, beta, key_mask=key_mask, key_shift=shift)
    torch.testing.assert_close(measured, dense)


def test_lln_spectral_gap_of_shared_keys_and_of_no_key():
    q, k = inputs(heads=4)
    k = k[:, :2]
    dense = spectral_gap(matrix(LLN, q, k.repeat_interleave(2, 1)))
    torch.testing.assert_close(lln_spectral_gap(q, k, 1.7, 2.1), dense)
    nothing = torch.zeros(2, 96, dtype=torch.bool)
    gap = lln_spectral_gap(q, k, 1.7, 2.1, key_mask=nothing)
    torch.testing.assert_close(gap, torch.ones(2, 4, dtype=torch.float64))


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("n", [1, 2, 3, 96, 300])
def test_spectral_gap_without_the_matrix(name, n):
    q, k = inputs(n)
    dense = spectral_gap(matrix(ATTENTIONS[name], q, k))
    measured = spectral_gap_of(ATTENTIONS[name], q, k)
    torch.testing.assert_close(measured, dense, atol=2e-3, rtol=0)
    exact = spectral_gap_of(ATTENTIONS[name], q, k, tolerance=1e-12, max_products=300)
    torch.testing.assert_close(exact, dense, atol=1e-8, rtol=0)


def test_spectral_gap_without_the_matrix_in_lower_precision():
    q, k = inputs(dtype=torch.float32)
    dense = spectral_gap(matrix(softmax_attention, q, k))
    for dtype, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 5e-2)):
        measured = spectral_gap_of(softmax_attention, q.to(dtype), k.to(dtype))
        torch.testing.assert_close(measured, dense, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spectral_gap_without_the_matrix_of_extremes(dtype):
    q, k = inputs(dtype=dtype)
    even, own = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for attend, gap in (
        (lambda q, k, v: v.mean(2, keepdim=True).expand_as(v), even),
        (lambda q, k, v: v, own),
        (lambda q, k, v: v.roll(1, 2), own),
    ):
        measured = spectral_gap_of(attend, q, k)
        torch.testing.assert_close(measured, gap, atol=2e-3, rtol=0)


def test_spectral_gap_without_the_matrix_of_masked_attention():
    q, k = inputs()
    attend = partial(softmax_attention, key_mask=mask(96, [96, 1]))
    dense = spectral_gap(matrix(attend, q, k))
    assert math.isclose(dense[1, 0].item(), 1, abs_tol=1e-9)  # all look at one token
    torch.testing.assert_close(spectral_gap_of(attend, q, k), dense, atol=2e-3, rtol=0)


def test_spectral_gap_needs_a_square_matrix():
    q, k = inputs()
    with pytest.raises(ValueError, match="as many queries"):
        spectral_gap_of(softmax_attention, q[:, :, :5], k)
