import pytest
import torch
from torch.testing import assert_close

import lln


def test_a_sequence_no_longer_than_the_landmarks_is_attended_to_exactly():
    q, k, v = torch.randn(3, 2, 4, 20, 8)
    key_mask = torch.arange(20) < torch.tensor([[20], [9]])
    core = lln.build_core("nystromformer", heads=4, head_dim=8, landmarks=20)
    softmax = lln.build_core("softmax", heads=4, head_dim=8)
    out, expected = (attend(q, k, v, key_mask=key_mask) for attend in (core, softmax))
    assert_close(out[0], expected[0])
    assert_close(out[1, :, :9], expected[1, :, :9])


def test_a_convolution_needs_a_middle():
    with pytest.raises(ValueError, match="conv must be odd"):
        lln.build_core("nystromformer", heads=4, head_dim=8, conv=4)
