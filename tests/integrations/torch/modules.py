"""Modules and masks that these tests share."""

import inspect

import torch
from torch import nn

import lln
from lln.registry import entry

DIM, HEADS, BATCH, N = 32, 4, 3, 10
SMALL = {"landmarks": 4, "rank": 5, "block_size": 4, "chunk_size": 4, "buckets": 4, "window": 4}
CORES = [name for name in lln.available() if entry(name).kind == "core"]


def build(name="lln_diag", **arguments):
    small = {key: value for key, value in SMALL.items() if key in entry(name).options}
    context = {"max_len": N} if "max_len" in inspect.signature(entry(name).cls).parameters else {}
    arguments = {"batch_first": True, **small, **context, **arguments}
    return lln.MultiheadAttention(DIM, HEADS, attention=name, **arguments)


def twins(**arguments):
    """torch's module and ours, with softmax and the same weights, biases included."""
    theirs = nn.MultiheadAttention(DIM, HEADS, **arguments)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=DIM**-0.5)
    return theirs, lln.MultiheadAttention.from_torch(theirs, "softmax")


def padding(kind, lengths=(N, 6, 3), n=N):
    hidden = torch.arange(n) >= torch.tensor(lengths)[:, None]
    return as_kind(hidden, kind)


def as_kind(hidden, kind):
    if kind == "float":
        return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    return hidden if kind == "bool" else None


def later(n_q=N, n_k=N):
    return torch.ones(n_q, n_k).triu(1 + n_k - n_q).bool()
