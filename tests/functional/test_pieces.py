"""Working piece by piece, and looking at values first, change nothing but speed."""

import pytest
import torch
from torch.testing import assert_close

from lln.functional import (
    block_diagonal_attention,
    block_softmax,
    lln_attention,
    pieces,
    precision,
    two_softmaxes,
)

N = 300  # in spans of 64: four whole ones and a part


def both_ways(function, monkeypatch, cut=True):
    """What `function` gives in one piece, without a look, and with one, and in pieces if `cut`."""
    whole = function()
    monkeypatch.setattr(pieces, "LARGE", 0)
    if cut:
        monkeypatch.setattr(pieces, "SPAN", 1)
    return whole, function()


def laid_out(x, tokens_first):
    """The same, in memory as layers have it if `tokens_first`."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else x


def test_spans_cover_the_sequence_once(monkeypatch):
    x = torch.empty(2, 3, N, 4)
    assert pieces.spans(x) == [slice(0, N)]
    monkeypatch.setattr(pieces, "SPAN", 1)
    positions = torch.cat([torch.arange(N)[span] for span in pieces.spans(x)])
    assert torch.equal(positions, torch.arange(N))
    assert len(pieces.spans(x)) == 5


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("span", [1, 9 * 7 * 4, 2 * 12 * 9 * 7, 10**6])
def test_stacks_cover_batch_and_heads_once_in_order(batch, tokens_first, span, monkeypatch):
    monkeypatch.setattr(pieces, "SPAN", span)
    x = laid_out(torch.randn(batch, 12, 9, 7), tokens_first)
    cut = pieces.stacks(x)
    assert torch.equal(pieces.join([x[stack] for stack in cut], x), x)
    assert torch.equal(pieces.join([pieces.of(s, None, x)[1].sum(-1) for s in cut], x), x.sum(-1))
    if span == 10**6:
        assert len(cut) == 1


def test_heads_that_lie_apart_are_cut_evenly_among_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x = torch.empty(1, 12, 8192, 64)
    assert [h.stop - h.start for _, h in pieces.stacks(x)] == [4] * 3
    assert pieces.stacks(laid_out(x, True)) == [(slice(0, 1), slice(0, 12))]
    assert len(pieces.spans(laid_out(x, True))) == 4


@pytest.mark.parametrize(
    "inputs", ["plain", "some_masked", "one_row_empty", "first_span_empty", "huge", "nan"]
)
@pytest.mark.parametrize("n_q", [N, 70])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_attention_and_its_gradients(inputs, n_q, learned, tokens_first, cut, monkeypatch):
    q, k, v = (torch.randn(*x).double() for x in ((2, 4, n_q, 5), (2, 2, N, 5), (2, 2, N, 3)))
    alpha, beta = torch.rand(2, 4).double() + 1, torch.rand(2, 2).double() + 1
    shift = torch.randn(2, 2, 5).double()
    keep = torch.rand(2, N) > 0.4
    if inputs == "one_row_empty":
        keep[1] = False
    if inputs == "first_span_empty":  # and keys whose peak is far below the 0 of no peak at all
        keep[:, :70] = False
        k = k - 400
    if inputs in ("plain", "huge", "nan"):
        keep = None
    else:
        k, v = (x.masked_fill(~keep[:, None, :, None], torch.nan) for x in (k, v))
    if inputs == "huge":
        q, k, v = 300 * q, 300 * k, 1e290 * v
    if inputs == "nan":
        k[0, 1, 77, 2] = torch.nan
    q, k, v = (laid_out(x, tokens_first) for x in (q, k, v))
    leaves = [q, k, v, *([alpha, beta, shift] if learned else [])]
    weight = torch.randn(2, 4, n_q, 3).double()

    def run():
        for x in leaves:
            x.grad = None
            x.requires_grad_()
        out = lln_attention(q, k, v, alpha, beta, key_shift=shift, key_mask=keep)
        (out * weight).sum().backward()
        return [out.detach(), *(x.grad for x in leaves)]

    whole, parts = both_ways(run, monkeypatch, cut)
    for a, b in zip(whole, parts, strict=True):
        assert inputs == "nan" or a.isfinite().all()
        assert_close(a, b, equal_nan=True)
    if inputs == "nan":  # the heads that do not see it
        assert whole[0][0, :2].isfinite().all()
        assert whole[0][1].isfinite().all()


@pytest.mark.parametrize(("logits", "tame"), [(3.0, True), (50.0, False), (-50.0, False)])
def test_peaks_are_taken_off_only_if_they_have_to_be(logits, tame, monkeypatch):
    monkeypatch.setattr(pieces, "LARGE", 0)
    seen = []
    monkeypatch.setattr(
        two_softmaxes, "is_tame", lambda x: seen.append(precision.is_tame(x)) or seen[-1]
    )
    q, k, v = (torch.randn(1, 2, 70, 5) for _ in range(3))
    out = lln_attention(q + logits, k + logits, v, 1.0, 1.0)
    assert seen == [tame, tame]  # of keys and of queries
    monkeypatch.setattr(pieces, "LARGE", 10**9)
    assert_close(out, lln_attention(q + logits, k + logits, v, 1.0, 1.0))
    assert_close(out, lln_attention(q, k, v, 1.0, 1.0))  # which an offset does not change


def test_all_pieces_share_one_room(monkeypatch):
    k, q = torch.empty(1, 4, N, 5), torch.empty(1, 4, 2, 70, 5)
    assert pieces.room_for(k, q) is None
    monkeypatch.setattr(pieces, "SPAN", 64 * 2 * 5)
    sizes = [
        x[stack][..., span, :].numel()
        for x in (k, q)
        for stack in pieces.stacks(x)
        for span in pieces.spans(x[stack])
    ]
    assert pieces.room_for(k, q).numel() == max(sizes) < k.numel()


@pytest.mark.parametrize("at", [0, 150, N - 1])
def test_an_outlier_in_one_span_is_seen_by_all(at, monkeypatch):
    q, k, v = (torch.randn(1, 2, N, 5, dtype=torch.float64) for _ in range(3))
    k[:, :, at, 0] = 1e3  # its feature belongs to this key alone, the others to all keys
    whole, parts = both_ways(lambda: lln_attention(q, k, v, 1.5, 1.5), monkeypatch)
    assert_close(whole, parts)


@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
@pytest.mark.parametrize("size", [32, 50, 128])  # blocks that N is, and is not, a multiple of
@pytest.mark.parametrize("tokens_first", [False, True])
def test_blocks_and_their_gradients(causal, size, tokens_first, monkeypatch):
    leaves = [torch.randn(2, h, N, d).double() for h, d in ((4, 5), (2, 5), (2, 3))]
    leaves = [laid_out(x, tokens_first) for x in leaves]
    weight = torch.randn(2, 4, N, 3).double()

    def run():
        for x in leaves:
            x.grad = None
            x.requires_grad_()
        out = block_diagonal_attention(*leaves, block_size=size, causal=causal)
        (out * weight).sum().backward()
        return [out.detach(), *(x.grad for x in leaves)]

    whole, parts = both_ways(run, monkeypatch)
    for a, b in zip(whole, parts, strict=True):
        assert_close(a, b)
    # SDPA, which is the way for blocks of any size elsewhere, says the same.
    monkeypatch.setattr(block_softmax, "LARGEST", 0)
    for a, b in zip(whole, run(), strict=True):
        assert_close(a, b)
