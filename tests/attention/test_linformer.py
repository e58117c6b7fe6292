import pytest
import torch

import lln


def test_it_asks_for_max_len_and_holds_to_it():
    with pytest.raises(ValueError, match="linformer needs max_len"):
        lln.build("linformer", dim=16, heads=2)
    mixer = lln.build("linformer", dim=16, heads=2, max_len=9)
    with pytest.raises(ValueError, match="linformer was built for max_len=9, got N=10"):
        mixer(torch.randn(1, 10, 16))
