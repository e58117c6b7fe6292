"""Gradients against finite differences, in float64, for every form."""

import pytest
import torch
from torch.autograd import gradcheck

from functional.forms import draw, positive
from lln.functional import (
    block_diagonal_attention,
    block_diagonal_recurrent,
    linear_attention,
    lln_attention,
    lln_diag_attention,
    lln_diag_recurrent,
    lln_recurrent,
)

KEEP = torch.tensor([[0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()
SETTINGS = {
    "plain": {},
    "key_mask": {"key_mask": KEEP},
    "packed": {"cu_seqlens": torch.tensor([0, 2, 2, 5])},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)
each_direction = pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])


def variables(setting=None, n_q=6):
    batch = 1 if setting == "packed" else 2
    inputs = draw(n_q, 6, batch=batch, heads=2, kv_heads=1, dim=3, dim_v=2, dtype=torch.float64)
    return [x.requires_grad_() for x in inputs]


def factors(*shapes):
    return [(torch.rand(s, dtype=torch.float64) + 0.5).requires_grad_() for s in shapes]


@each_direction
@each_setting
class TestAttention:
    def test_lln(self, setting, causal):
        rows = 3 if setting == "packed" else 2
        inputs = variables(setting) + factors((rows, 2), (rows, 1), (rows, 1, 3))

        def run(q, k, v, alpha, beta, shift):
            options = {"causal": causal, "chunk_size": 2, "key_shift": shift, **SETTINGS[setting]}
            return lln_attention(q, k, v, alpha, beta, **options)

        assert gradcheck(run, inputs)

    def test_linear(self, setting, causal):
        def run(q, k, v):
            options = {"causal": causal, "chunk_size": 2, **SETTINGS[setting]}
            return linear_attention(positive(q), positive(k), v, **options)

        assert gradcheck(run, variables(setting))

    def test_block_diagonal(self, setting, causal):
        def run(q, k, v):
            options = {"causal": causal, "block_size": 2, **SETTINGS[setting]}
            return block_diagonal_attention(q, k, v, **options)

        assert gradcheck(run, variables(setting))

    def test_lln_diag(self, setting, causal):
        inputs = variables(setting) + factors((), (), (2, 1, 1), (2, 1, 1))

        def run(q, k, v, alpha, beta, lln_share, diag_share):
            shares = {"lln_share": lln_share, "diag_share": diag_share}
            options = {"causal": causal, "chunk_size": 2, "block_size": 2, **SETTINGS[setting]}
            return lln_diag_attention(q, k, v, alpha, beta, **shares, **options)

        assert gradcheck(run, inputs)


@each_direction
@pytest.mark.parametrize("n_q", [4, 7])
def test_other_number_of_queries(n_q, causal):
    def run(q, k, v):
        options = {"causal": causal, "key_mask": KEEP}
        return lln_diag_attention(q, k, v, 1.5, 0.7, chunk_size=2, block_size=2, **options)

    assert gradcheck(run, variables(n_q=n_q))


def in_pieces(step, q, k, v, key_mask):
    """A step, a longer piece and another step; the last state is part of the result."""
    state, outs = None, []
    for piece in (slice(0, 1), slice(1, 5), slice(5, 6)):
        tokens = (x[:, :, piece] for x in (q, k, v))
        keep = None if key_mask is None else key_mask[:, piece]
        out, state = step(*tokens, state, key_mask=keep)
        outs.append(out)
    return torch.cat(outs, 2), state


@pytest.mark.parametrize("key_mask", [None, KEEP], ids=["plain", "key_mask"])
class TestRecurrent:
    def test_lln(self, key_mask):
        def run(q, k, v, alpha, beta, shift):
            def step(q, k, v, state, **options):
                options |= {"chunk_size": 2, "key_shift": shift}
                return lln_recurrent(q, k, v, alpha, beta, state, **options)

            out, state = in_pieces(step, q, k, v, key_mask)
            return out, state.mean, state.log_weight.clamp(min=-1e3)  # −inf has no difference

        assert gradcheck(run, variables() + factors((2, 2), (2, 1), (1, 3)))

    def test_block_diagonal(self, key_mask):
        def run(q, k, v):
            def step(*args, **options):
                return block_diagonal_recurrent(*args, block_size=3, **options)

            out, state = in_pieces(step, q, k, v, key_mask)
            return out, state.keys, state.values

        assert gradcheck(run, variables())

    def test_lln_diag(self, key_mask):
        def run(q, k, v, alpha, beta, share):
            def step(q, k, v, state, **options):
                options |= {"chunk_size": 2, "block_size": 3, "lln_share": share}
                return lln_diag_recurrent(q, k, v, alpha, beta, state, **options)

            return in_pieces(step, q, k, v, key_mask)[0]

        assert gradcheck(run, variables() + factors((), (), (2, 1, 1)))
