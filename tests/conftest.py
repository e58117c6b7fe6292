import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a hub
# The tensors are tiny: threads that spin while they wait, the default, make the tests four times
# slower on a busy machine. Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(2)
settings.register_profile("lln", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("lln")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
