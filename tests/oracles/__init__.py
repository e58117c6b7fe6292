"""Every registered mechanism in float64, O(N²), written from its paper's formula; differentiable.

A core's oracle is `core_<name>(core, q, k, **see)`, the attention matrix `(B, H, N_q, N_k)`; where
the output is not linear in v it is `out_<name>(core, q, k, v, **see)`, the output. `see` holds
key_mask, causal and cu_seqlens. A mixer's is `mixer_<name>(mixer, x, causal)`, on sequences without
padding. Each is independent of the code that it judges, but for that code's own parameters.
"""

from oracles import classic, features, landmarks, mixers, sparse
from oracles.formulas import kernel, lln, query_blocks, same_block, softmax, visible

__all__ = [
    "attend",
    "kernel",
    "lln",
    "mix",
    "query_blocks",
    "same_block",
    "softmax",
    "visible",
    "weights",
]

MODULES = (classic, features, landmarks, sparse, mixers)


def weights(name):
    """The oracle of a registered core, as a matrix; None if its output is not linear in v."""
    return _find(f"core_{name}")


def attend(name, core, q, k, v, **see):
    """What the core should give, `(B, H, N_q, E)`."""
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    matrix = weights(name)
    return (
        _find(f"out_{name}")(core, q, k, v, **see)
        if matrix is None
        else (matrix(core, q, k, **see) @ v)
    )


def mix(name, mixer, x, *, causal=False):
    """What the mixer should give, `(B, N, C)`."""
    return _find(f"mixer_{name}")(mixer, x.double(), causal)


def _find(name):
    return next((getattr(module, name) for module in MODULES if hasattr(module, name)), None)
