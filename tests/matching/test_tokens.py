"""Of a long sequence a sample is measured: the same one, however the sequence arrives."""

import pytest
import torch
from torch.testing import assert_close

from lln.matching import match, measure
from lln.matching.moments import WHOLE
from lln.matching.tokens import Tokens

SIZES = [(1031, 1031), (127, 521)]  # so many tokens of a sequence that has more than so many
LENGTHS = (120, 127, 130, 520, 521, 522, 1030, 1031, 1032, 2069, 3000)


def alone(n, dim=3):
    return torch.randn(1, 2, n, dim)


@pytest.mark.parametrize(("size", "whole"), SIZES)
@pytest.mark.parametrize("n", LENGTHS)
def test_a_sample_is_spread_evenly_over_the_sequence(n, size, whole):
    position = torch.arange(n, dtype=torch.float32).view(1, 1, n, 1)
    taken = Tokens.sample(position, None, None, size, whole)
    assert taken.length.item() == n
    assert taken.count.item() == taken.x.numel() == (n if n <= whole else size)
    assert taken.complete == (n <= whole)
    gaps = taken.x.flatten().diff()
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(("size", "whole"), SIZES)
@pytest.mark.parametrize("period", [2, 7, 16, 64, 128])
def test_a_sample_falls_in_step_with_no_period(period, size, whole):
    n = 128 * 128  # the pixels of an image, where every 16th would be of 8 columns
    column = (torch.arange(n) % period).float().view(1, 1, n, 1)
    seen = Tokens.sample(column, None, None, size, whole).x.flatten().unique()
    assert seen.numel() == min(period, size)


@pytest.mark.parametrize(("size", "whole"), SIZES)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("layout", ["left", "right", "holes"])
def test_padding_does_not_change_it(n, layout, size, whole):
    x, total = alone(n), 3300
    position = torch.arange(total)
    keep = {
        "left": position >= total - n,
        "right": position < n,
        "holes": torch.zeros(total).index_fill(0, torch.randperm(total)[:n], 1) > 0,
    }[layout]
    padded = torch.full((1, 2, total, 3), torch.nan)
    padded[:, :, keep] = x
    expected = Tokens.sample(x, None, None, size, whole)
    found = Tokens.sample(padded, keep[None], None, size, whole)
    assert torch.equal(found.count, expected.count)
    assert torch.equal(found.length, expected.length)
    assert_close(found.mean(), expected.mean())
    assert_close(found.second_moment(), expected.second_moment())


@pytest.mark.parametrize(("size", "whole"), SIZES)
def test_packing_does_not_change_it(size, whole):
    parts = [alone(n) for n in LENGTHS]
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    found = Tokens.sample(torch.cat(parts, 2), None, bounds, size, whole)
    for i, part in enumerate(parts):
        expected = Tokens.sample(part, None, None, size, whole)
        assert torch.equal(found.count[i : i + 1], expected.count)
        assert torch.equal(found.length[i : i + 1], expected.length)
        assert_close(found.mean()[i : i + 1], expected.mean())
        assert_close(found.second_moment()[i : i + 1], expected.second_moment())


def test_export_takes_the_same_sample():
    q, k = torch.randn(2, 1, 2, 3000, 8)

    class Match(torch.nn.Module):
        def forward(self, q, k):
            return match("entropy", q, k)

    n = torch.export.Dim("n", min=2, max=4096)
    exported = torch.export.export(Match(), (q, k), dynamic_shapes=({2: n}, {2: n})).module()
    for length in (3000, WHOLE + 1, WHOLE, 100):
        part = q[:, :, :length], k[:, :, :length]
        for found, expected in zip(exported(*part), match("entropy", *part), strict=True):
            assert_close(found, expected)


def test_a_sample_says_what_all_tokens_would():
    """Of correlated tokens, too: each is mostly the one before it."""
    q, k = torch.randn(2, 4, 8, 8192, 16)
    for i in range(1, 8192):
        q[:, :, i] = 0.9 * q[:, :, i - 1] + 0.436 * q[:, :, i]
        k[:, :, i] = 0.9 * k[:, :, i - 1] + 0.436 * k[:, :, i]
    scores = torch.stack([(q[:, :, i::64] @ k.mT).var(-1).mean(-1) for i in range(4)]).mean(0) / 16
    ratio = measure(q, k).score_var / scores
    assert ratio.sub(1).abs().mean() < 0.05
