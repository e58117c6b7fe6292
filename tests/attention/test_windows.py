"""What `longformer` and `transformer_ls` refuse, and what they see."""

import pytest
import torch
from torch.testing import assert_close

import lln


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be a positive integer"),
        ({"window": 5}, "window must be even"),
        ({"global_tokens": -1}, "global_tokens must be a positive integer"),
    ],
)
def test_longformer_refuses_impossible_windows(options, message):
    with pytest.raises(ValueError, match=message):
        lln.build_core("longformer", heads=2, head_dim=4, **options)


def test_a_window_over_everything_is_softmax_attention():
    q, k, v = torch.randn(3, 2, 4, 30, 8)
    softmax = lln.build_core("softmax", heads=4, head_dim=8)
    for options in ({"window": 64}, {"window": 2, "global_tokens": 30}):
        core = lln.build_core("longformer", heads=4, head_dim=8, **options)
        assert_close(core(q, k, v), softmax(q, k, v))


def test_transformer_ls_needs_values_like_keys():
    core = lln.build_core("transformer_ls", heads=2, head_dim=4)
    q, v = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 5)
    with pytest.raises(ValueError, match="v must have the head dimension 4 of k, got 5"):
        core(q, q, v)


def test_mechanisms_of_one_sequence_refuse_cross_attention():
    q, k = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 7, 4)
    with pytest.raises(NotImplementedError, match=r"longformer .* got N_q=6, N_k=7"):
        lln.build_core("longformer", heads=2, head_dim=4)(q, k, k)
