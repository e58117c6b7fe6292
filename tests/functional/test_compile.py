"""torch.compile in one graph for all lengths, and torch.export with open batch and length."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from functional.forms import assert_same, draw, out_and_gradients
from lln.functional import (
    block_diagonal_attention,
    linear_attention,
    lln_attention,
    lln_diag_attention,
)


class LLN(torch.nn.Module):
    def forward(self, q, k, v, key_mask):
        return lln_attention(q, k, v, 1.5, 0.7, key_mask=key_mask)


class CausalDiag(torch.nn.Module):
    def forward(self, q, k, v, key_mask=None):
        return lln_diag_attention(q, k, v, 1.5, 0.7, key_mask=key_mask, causal=True)


class Blocks(torch.nn.Module):
    def forward(self, q, k, v, key_mask):
        return block_diagonal_attention(q, k, v, key_mask=key_mask)


class CausalLinear(torch.nn.Module):
    def forward(self, q, k, v, key_mask):
        return linear_attention(q.exp(), k.exp(), v, key_mask=key_mask, causal=True)


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare_at(n, compiled, plain, masked=True):
    """Values and gradients at length n, where the length is one among many."""
    inputs = draw(n, heads=4, kv_heads=2, dim=8, dim_v=8)
    key_mask = [torch.rand(2, n) > 0.3] if masked else []

    def run(function):
        def call(*inputs):
            for x, dim in zip((*inputs, *key_mask), (2, 2, 2, 1), strict=False):
                torch._dynamo.mark_dynamic(x, dim)
            return function(*inputs, *key_mask)

        return out_and_gradients(call, *inputs)

    assert_same(run(compiled), run(plain))


@pytest.mark.parametrize(("module", "masked"), [(LLN, True), (Blocks, True), (CausalDiag, False)])
def test_compiles_once_for_many_lengths(module, masked):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module(), fullgraph=True, backend=counter)
    for n in (100, 130, 257):
        compare_at(n, compiled, module(), masked)
    assert counter.frame_count == 1


def test_inductor():
    compare_at(100, torch.compile(LLN(), fullgraph=True, backend="inductor"), LLN())


@pytest.mark.parametrize(
    ("module", "deferred"), [(LLN, False), (CausalDiag, True), (CausalLinear, True)]
)
def test_exports_with_open_batch_and_length(module, deferred):
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=2, max=100_000)
    inputs = (*draw(100), torch.rand(2, 100) > 0.3)
    program = torch.export.export(
        module(),
        inputs,
        dynamic_shapes=(*[{0: batch, 2: length}] * 3, {0: batch, 1: length}),
        prefer_deferred_runtime_asserts_over_guards=deferred,
    ).module()
    for b, n in ((1, 7), (3, 333)):
        inputs = (*draw(n, batch=b), torch.rand(b, n) > 0.3)
        assert_same(program(*inputs), module()(*inputs))
