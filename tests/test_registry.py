import pytest
import torch
from torch import nn

import lln
from lln.registry import Entry, entry, parse, register


def test_the_core_mechanisms_are_available():
    assert {
        "softmax",
        "lln",
        "lln_diag",
        "block_diag",
        "elu",
        "relu",
        "quadratic",
        "relu_kernel",
        "quadratic_kernel",
    } <= set(lln.available())


@pytest.mark.parametrize("name", lln.available())
def test_entries_describe_themselves(name):
    found = entry(name)
    assert isinstance(found, Entry)
    assert found.cls.__module__ == f"lln.attention.{name}"
    assert found.kind in ("core", "mixer")
    assert found.summary.endswith(".")
    assert found.paper
    assert found.complexity.startswith("O(")


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="'lln' is registered already, by LLNAttention"):
        register("lln", paper="", complexity="")(nn.Identity)


def test_unknown_names_list_the_known():
    for build in (
        lambda: lln.build("softmx", dim=8, heads=2),
        lambda: lln.build_core("softmx", heads=2, head_dim=4),
    ):
        with pytest.raises(ValueError, match=r"unknown attention 'softmx'; available: .*softmax"):
            build()


def test_options_in_one_word():
    assert parse("lln") == ("lln", {})
    assert parse("lln_diag+block_size=32+combine=learnable_ratio") == (
        "lln_diag",
        {"block_size": 32, "combine": "learnable_ratio"},
    )
    for label, message in {
        "nothing+a=1": "unknown attention 'nothing'",
        "lln+size=1": "'lln' has no option 'size'; valid: matching",
        "lln+matching": r"options are given as lln\+option=value",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse(label)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="dim must be a multiple of heads"):
        lln.build("softmax", dim=10, heads=4)
    with pytest.raises(ValueError, match="kv_heads must divide heads"):
        lln.build_core("softmax", heads=4, head_dim=8, kv_heads=3)
    with pytest.raises(ValueError, match="heads, head_dim and kv_heads must be positive"):
        lln.build_core("softmax", heads=4, head_dim=0)
    with pytest.raises(ValueError, match="dim must be heads · head_dim"):
        lln.MultiHead(lln.build_core("softmax", heads=4, head_dim=8), 33)


def test_max_len_goes_where_it_is_wanted():
    assert lln.build_core("softmax", heads=2, head_dim=4, max_len=99).heads == 2
    core = lln.build_core("lln", heads=2, head_dim=8, max_len=99)
    matcher = core.matcher
    assert matcher._unpack(matcher.stored).log_keys.exp().round() == 99


def test_mixers_refuse_what_they_cannot_mix():
    mixer = lln.build("lln", dim=16, heads=2)
    with pytest.raises(ValueError, match=r"x must have shape \(B, N, 16\)"):
        mixer(torch.randn(2, 3, 15))
    with pytest.raises(ValueError, match="key_mask must be bool"):
        mixer(torch.randn(2, 3, 16), key_mask=torch.ones(2, 3))


def test_grouped_heads_have_fewer_keys():
    mixer = lln.build("lln_diag", dim=32, heads=4, kv_heads=2)
    assert mixer.key.weight.shape == mixer.value.weight.shape == (16, 32)
    assert mixer(torch.randn(2, 5, 32)).shape == (2, 5, 32)


def test_adding_a_mechanism_as_the_guide_says(monkeypatch):
    from pathlib import Path

    import lln.registry as registry

    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    guide = (Path(__file__).parents[1] / "docs" / "adding.md").read_text()
    code = guide.split("```python")[1].split("```")[0]
    exec(compile("\n".join(line[3:] for line in code.splitlines()), "adding.md", "exec"), {})
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    phi_q, phi_k = nn.functional.softplus(q), nn.functional.softplus(k)
    weight = phi_q @ phi_k.mT
    expected = weight / weight.sum(-1, keepdim=True) @ v
    core = lln.build_core("softplus", heads=2, head_dim=4)
    torch.testing.assert_close(core(q, k, v), expected)
