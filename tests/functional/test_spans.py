"""Working span by span changes nothing but speed."""

import pytest
import torch
from torch.testing import assert_close

from lln.functional import block_diagonal_attention, block_softmax, lln_attention, slots
from lln.matching import Factors, column_entropy

N = 300  # in spans of 64: four whole ones and a part


def pieces(function, monkeypatch):
    """What `function` gives in one piece, and in spans."""
    whole = function()
    monkeypatch.setattr(slots, "SPAN", 1)
    return whole, function()


def test_spans_cover_the_sequence_once(monkeypatch):
    x = torch.empty(2, 3, N, 4)
    assert slots.spans(x) == [slice(0, N)]
    monkeypatch.setattr(slots, "SPAN", 1)
    positions = torch.cat([torch.arange(N)[span] for span in slots.spans(x)])
    assert torch.equal(positions, torch.arange(N))
    assert len(slots.spans(x)) == 5


@pytest.mark.parametrize("mask", ["all", "some", "one_row_empty", "first_span_empty"])
@pytest.mark.parametrize("n_q", [N, 70])
@pytest.mark.parametrize("learned", [False, True])
def test_attention_and_its_gradients(mask, n_q, learned, monkeypatch):
    q, k, v = (torch.randn(*x).double() for x in ((2, 4, n_q, 5), (2, 2, N, 5), (2, 2, N, 3)))
    alpha, beta = torch.rand(2, 4).double() + 1, torch.rand(2, 2).double() + 1
    shift = torch.randn(2, 2, 5).double()
    keep = torch.rand(2, N) > 0.4
    if mask == "one_row_empty":
        keep[1] = False
    if mask == "first_span_empty":  # and keys whose peak is far below the 0 of no peak at all
        keep[:, :70] = False
        k = k - 400
    if mask != "all":
        k, v = (x.masked_fill(~keep[:, None, :, None], torch.nan) for x in (k, v))
    leaves = [q, k, v, *([alpha, beta, shift] if learned else [])]
    weight = torch.randn(2, 4, n_q, 3).double()

    def run():
        for x in leaves:
            x.grad = None
            x.requires_grad_()
        out = lln_attention(
            q, k, v, alpha, beta, key_shift=shift, key_mask=None if mask == "all" else keep
        )
        (out * weight).sum().backward()
        return [out.detach(), *(x.grad for x in leaves)]

    whole, parts = pieces(run, monkeypatch)
    for a, b in zip(whole, parts, strict=True):
        assert a.isfinite().all()
        assert_close(a, b)


@pytest.mark.parametrize("at", [0, 150, N - 1])
def test_an_outlier_in_one_span_is_seen_by_all(at, monkeypatch):
    q, k, v = (torch.randn(1, 2, N, 5, dtype=torch.float64) for _ in range(3))
    k[:, :, at, 0] = 1e3  # its feature belongs to this key alone, the others to all keys
    whole, parts = pieces(lambda: lln_attention(q, k, v, 1.5, 1.5), monkeypatch)
    assert_close(whole, parts)


@pytest.mark.parametrize("mask", ["all", "some", "first_span_empty"])
def test_entropy_of_columns(mask, monkeypatch):
    q, k = torch.randn(2, 4, N, 5).double(), torch.randn(2, 2, N, 5).double()
    found = Factors(torch.rand(2, 4) + 1, torch.rand(2, 2) + 1, None)
    keep = None if mask == "all" else torch.rand(2, N) > 0.4
    if mask == "first_span_empty":
        keep[:, :70] = False
        k = k - 100
    whole, parts = pieces(lambda: column_entropy(q, k, found, key_mask=keep), monkeypatch)
    assert whole.isfinite().all()
    assert_close(whole, parts)


@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
@pytest.mark.parametrize("size", [32, 50, 128])  # blocks that N is, and is not, a multiple of
@pytest.mark.parametrize("tokens_first", [False, True])
def test_blocks_and_their_gradients(causal, size, tokens_first, monkeypatch):
    leaves = [torch.randn(2, h, N, d).double() for h, d in ((4, 5), (2, 5), (2, 3))]
    if tokens_first:  # as layers have them
        leaves = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in leaves]
    weight = torch.randn(2, 4, N, 3).double()

    def run():
        for x in leaves:
            x.grad = None
            x.requires_grad_()
        out = block_diagonal_attention(*leaves, block_size=size, causal=causal)
        (out * weight).sum().backward()
        return [out.detach(), *(x.grad for x in leaves)]

    whole, parts = pieces(run, monkeypatch)
    for a, b in zip(whole, parts, strict=True):
        assert_close(a, b)
    # SDPA, which is the way for blocks of any size elsewhere, says the same.
    monkeypatch.setattr(block_softmax, "LARGEST", 0)
    for a, b in zip(whole, run(), strict=True):
        assert_close(a, b)
