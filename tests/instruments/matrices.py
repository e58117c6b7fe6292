"""Attention and matrices that the tests of instruments share."""

import torch

import lln
from lln.registry import entry

HEADS, DIM = 4, 8
# Small enough that short sequences have several blocks, windows, landmarks …
SMALL = {
    "landmarks": 4,
    "rank": 5,
    "block_size": 5,
    "chunk_size": 5,
    "buckets": 4,
    "window": 4,
}
CORES = [
    name
    for name in lln.available()
    if entry(name).kind == "core" and entry(name).cls.linear_in_values
]
AVERAGING = [name for name in CORES if entry(name).row_stochastic]
FACTORED = ["elu", "relu", "quadratic", "performer", "hedgehog", "lln"]


def build(name, dtype=torch.float64, **options):
    torch.manual_seed(1)
    small = {key: value for key, value in SMALL.items() if key in entry(name).options}
    return lln.build_core(name, heads=HEADS, head_dim=DIM, max_len=256, **small, **options).to(
        dtype
    )


def draw(n=40, batch=2, kv_heads=HEADS, dtype=torch.float64, std=1.2):
    q = std * torch.randn(batch, HEADS, n, DIM, dtype=torch.float64)
    k = std * torch.randn(batch, kv_heads, n, DIM, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


def padded(q, k, junk=torch.nan):
    """A batch of two: the sequence with padding on both sides, and without its second half."""
    n = q.shape[2]
    keep = torch.zeros(2, n + 5, dtype=torch.bool)
    keep[0, 2 : n + 2], keep[1, 5 : 5 + n // 2] = True, True

    def spread(x):
        out = torch.full((2, x.shape[1], n + 5, x.shape[3]), junk, dtype=x.dtype)
        out[0, :, 2 : n + 2], out[1, :, 5 : 5 + n // 2] = x[0], x[0, :, : n // 2]
        return out

    return spread(q), spread(k), keep


def alone(q, k):
    """The sequences of `padded`, each by itself."""
    half = q.shape[2] // 2
    return [(q[:1], k[:1]), (q[:1, :, :half], k[:1, :, :half])]


def dense(core, q, k, **options):
    """P by its definition: attention over the unit vectors."""
    n = k.shape[2]
    identity = torch.eye(n, dtype=k.dtype).expand(*k.shape[:2], n, n)
    with torch.no_grad():
        return core(q, k, identity, **options)


KNOWN = {
    # P, entropy in bits, |λ₂|, σ_max of the centred P, variance (Eq. 21)
    "identity": (torch.eye(6), 0.0, 1.0, 1.0, 5 / 36),
    "uniform": (torch.full((8, 8), 1 / 8), 3.0, 0.0, 0.0, 0.0),
    "permutation": (torch.eye(5).roll(1, 0), 0.0, 1.0, 1.0, 4 / 25),
    "rank one": (torch.tensor([[0.5, 0.25, 0.25, 0]]).expand(4, 4), 1.5, 0.0, 0.0, 1 / 32),
    # two blocks, even within each: two stationary states
    "blocks": (torch.block_diag(*[torch.full((4, 4), 1 / 4)] * 2), 2.0, 1.0, 1.0, 1 / 64),
    "one token": (torch.ones(1, 1), 0.0, 0.0, 0.0, 0.0),
}
