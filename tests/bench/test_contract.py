import dataclasses

import pytest
import torch

import lln
from lln.attention import Attention
from lln.bench import cases, contract
from lln.bench.references import REFERENCES
from lln.functional import softmax_attention
from lln.registry import _entries, register


@pytest.mark.parametrize("name", cases.names())
def test_everything_that_is_timed_keeps_the_contract(name):
    assert contract.red(name) is None


class Sound(Attention):
    """Softmax attention, of which each test spoils something."""

    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        return softmax_attention(q, k, v, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens)


class SeesPadding(Sound):
    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        return super().forward(q, k, v, causal=causal)


class SpreadsNaN(Sound):
    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        out = super().forward(q, k, v, key_mask=key_mask, causal=causal)
        return out + 0 * v.sum(2, keepdim=True)


class MixesBatches(Sound):
    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        out = super().forward(q, k, v, key_mask=key_mask, causal=causal)
        return out if key_mask is not None or len(v) == 1 else out + 1e-6 * v.mean()


class SeesTheFuture(Sound):
    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        return super().forward(q, k, v, key_mask=key_mask)


class WrongGradient(Sound):
    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        return super().forward(q, k.detach(), v, key_mask=key_mask, causal=causal)


class Crashes(Sound):
    def forward(self, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        raise KeyError


@pytest.fixture
def registered(monkeypatch):
    def add(cls):
        monkeypatch.setattr("lln.registry._entries", dict(_entries))
        register("broken", paper="Nobody 2000", complexity="O(N²)")(cls)
        return "broken"

    return add


def test_a_sound_mechanism_is_green(registered):
    assert contract.red(registered(Sound)) is None


@pytest.mark.parametrize(
    ("cls", "clause"),
    [
        (SeesPadding, "padding left: "),
        (SpreadsNaN, "junk left: "),
        (MixesBatches, "batch mates: "),
        (SeesTheFuture, "future: "),
        (WrongGradient, "gradients: "),
        (Crashes, "padding left: KeyError"),
    ],
)
def test_a_broken_clause_is_named(registered, cls, clause):
    reason = contract.red(registered(cls))
    assert reason is not None
    assert reason.startswith(clause)
    assert "\n" not in reason


@pytest.mark.parametrize("causal", [False, True])
def test_values_are_held_to_the_formula(monkeypatch, causal):
    right = lln.functional.lln_attention

    def wrong(*args, causal=False, **more):
        return right(*args, causal=causal, **more) * (1.001 if causal is spoilt else 1)

    spoilt = causal
    monkeypatch.setattr("lln.functional.lln_attention", wrong)
    reason = contract.red("lln")
    assert reason.startswith("formula (causal)" if causal else "formula: ")


def test_gradients_are_held_to_the_formula(monkeypatch):
    right = lln.functional.lln_attention
    monkeypatch.setattr(
        "lln.functional.lln_attention",
        lambda q, k, v, *args, **more: right(q, k, v.detach() + 0 * v, *args, **more),
    )
    assert contract.red("lln").startswith("formula: ")


def test_references_are_held_to_their_formulas(monkeypatch):
    wrong = dataclasses.replace(REFERENCES["lln_given"], attend=lambda q, k, v, causal=False: v)
    monkeypatch.setitem(REFERENCES, "lln_given", wrong)
    assert contract.gate(["sdpa", "lln_given", "peer_performer"]).keys() == {"lln_given"}


def test_the_clauses_leave_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    contract.red("performer")
    torch.testing.assert_close(torch.randn(4), expected, rtol=0, atol=0)
