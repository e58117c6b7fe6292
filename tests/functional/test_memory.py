"""What autograd keeps for the backward pass grows with N, not with N²."""

import pytest
from torch.autograd.graph import saved_tensors_hooks

from functional.forms import MECHANISMS, draw


def saved_bytes(run, n):
    """What autograd keeps for the backward pass, each piece of memory counted once."""
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    inputs = [x.requires_grad_() for x in draw(n, batch=1, dim=8, dim_v=8)]
    with saved_tensors_hooks(pack, lambda x: x):
        out = run(*inputs)
    assert out.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(
    ("mechanism", "causal"),
    [
        *((m, c) for m in ("linear", "block", "lln", "lln_diag") for c in (False, True)),
        pytest.param("softmax", True, marks=pytest.mark.xfail(reason="quadratic: the control")),
    ],
)
def test_memory_is_linear(mechanism, causal):
    def run(q, k, v):
        return MECHANISMS[mechanism].run(q, k, v, causal=causal)

    assert saved_bytes(run, 2048) <= 2.1 * saved_bytes(run, 1024)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_keep_their_inputs_alone(causal):
    def run(q, k, v):
        return MECHANISMS["block"].run(q, k, v, causal=causal)

    inputs = draw(1024, batch=1, dim=8, dim_v=8)
    assert saved_bytes(run, 1024) == sum(x.nbytes for x in inputs)
