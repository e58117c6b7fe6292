"""A number as `matching` is α and β, and nothing is measured."""

import importlib
import math

import pytest
import torch
from torch.testing import assert_close

import lln
from lln import functional
from lln.attention.saving import from_json, to_json
from lln.instruments import record
from lln.instruments.measures import temperature
from lln.matching import Matching, calibrating, match, resolve

VALUE = 2.3
NAMES = ("lln", "lln_diag")
FUNCTIONS = {
    "lln": (lln.lln_attention, functional.lln_attention, {}),
    "lln_diag": (lln.lln_diag_attention, functional.lln_diag_attention, {"block_size": 4}),
}
every_core = pytest.mark.parametrize("name", NAMES)
every_form = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


@pytest.fixture(autouse=True)
def _nothing_is_looked_up(monkeypatch):
    def refuse(head_dim):
        raise AssertionError("a fixed α needs no calibration")

    # By its name: `lln.matching.width` is also a function.
    module = importlib.import_module("lln.matching.width")
    monkeypatch.setattr(module, "calibration_for", refuse)


def inputs(n=20, dim=12, kv_heads=4):
    return (
        torch.randn(2, 4, n, dim),
        2 + torch.randn(2, kv_heads, n, dim),  # a mean that is not 0, and stays
        torch.randn(2, kv_heads, n, dim),
    )


def core(name, matching=VALUE, **options):
    return lln.build_core(name, heads=4, head_dim=12, matching=matching, **options)


@every_core
@every_form
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_alpha_and_beta_are_the_number(name, causal, kv_heads):
    q, k, v = inputs(kv_heads=kv_heads)
    mask = torch.rand(2, 20) > 0.3
    function, plain, options = FUNCTIONS[name]
    given = {"key_mask": mask, "causal": causal, **options}
    expected = plain(q, k, v, VALUE, VALUE, **given)
    module = core(name, kv_heads=kv_heads, **options)
    assert torch.equal(module(q, k, v, key_mask=mask, causal=causal), expected)
    assert torch.equal(function(q, k, v, matching=VALUE, **given), expected)
    assert match(VALUE, q, k).beta.shape == (1, kv_heads)


@every_core
def test_packed_sequences(name):
    q, k, v = (x[:1] for x in inputs())
    bounds = torch.tensor([0, 7, 20])
    packed = core(name)(q, k, v, cu_seqlens=bounds)
    for start, end in ((0, 7), (7, 20)):
        alone = core(name)(*(x[:, :, start:end] for x in (q, k, v)))
        assert_close(packed[:, :, start:end], alone)


@every_core
def test_decoding_needs_no_calibration(name):
    q, k, v = inputs()
    module = core(name)
    whole, state = module(q, k, v, causal=True), None
    for i in range(20):
        at = slice(i, i + 1)
        step, state = module.recurrent(q[:, :, at], k[:, :, at], v[:, :, at], state)
        assert_close(step, whole[:, :, at])


@every_core
def test_there_is_nothing_to_store(name):
    module = core(name)
    assert not module.state_dict()
    with (
        pytest.raises(ValueError, match="no LLN attention that stores statistics"),
        calibrating(module),
    ):
        pass


@every_core
def test_half_precision_keeps_the_number(name):
    q, k, v = (x.half() for x in inputs())
    expected = core(name)(q.float(), k.float(), v.float())
    assert_close(core(name).half()(q, k, v), expected.half(), rtol=0, atol=2e-3)
    assert match(VALUE, q, k).alpha[0, 0] == torch.tensor(VALUE)
    assert match(VALUE, q.double(), k.double()).alpha[0, 0].item() == VALUE


@every_core
def test_compiles_into_one_graph(name):
    q, k, v = inputs()
    module = core(name)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert_close(compiled(q, k, v), module(q, k, v))


@every_core
def test_it_survives_saving(name):
    for matching in (VALUE, 2, resolve(VALUE)):
        options = from_json(to_json({"matching": matching}))
        assert core(name, **options).matcher.matching == resolve(matching)


def test_as_a_label():
    assert lln.registry.parse("lln_diag+matching=2") == ("lln_diag", {"matching": 2})
    assert resolve(2) == resolve(2.0) == Matching(center_keys=False, statistics="frozen", fixed=2.0)


@every_core
@every_form
def test_recordings_show_it(name, causal, monkeypatch):
    monkeypatch.undo()  # the temperature is the calibrated one
    q, k, v = (x[..., :8] for x in inputs())
    module = lln.build_core(name, heads=4, head_dim=8, matching=VALUE)
    with record(module) as recording:
        module(q, k, v, causal=causal)
    for row in recording.rows:
        assert_close([row["alpha"], row["beta"]], [VALUE, VALUE])
        assert row["entropy"] > 0
    warmer = lln.build_core(name, heads=4, head_dim=8, matching=VALUE / 2)
    assert (temperature(module, q, k).paper < temperature(warmer, q, k).paper).all()


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_what_is_no_factor_is_refused(value):
    with pytest.raises(ValueError, match=f"must be positive and finite, got {float(value)}"):
        core("lln", value)


@pytest.mark.parametrize("value", [True, None, "2", "papr", [2.0]], ids=str)
def test_what_is_no_matching_is_refused(value):
    with pytest.raises(ValueError, match=r"one of entropy, paper, frozen, a number for α = β, or"):
        core("lln", value)


@pytest.mark.parametrize(
    "settings", [{}, {"statistics": "running"}, {"target": "variance"}, {"momentum": 0.5}]
)
def test_settings_that_would_do_nothing_are_refused(settings):
    with pytest.raises(ValueError, match=r"takes no settings beside it.*matching=2\.0"):
        Matching(fixed=2.0, **settings)
