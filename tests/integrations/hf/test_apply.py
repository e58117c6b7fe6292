"""`apply` on each architecture: what a layer asks for is what its core computes."""

import pytest
import torch

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import (  # noqa: E402
    CAUSAL,
    MODELS,
    TEXT_MODELS,
    VOCABULARY,
    N,
    build,
    inputs,
    padded,
    run,
)

close = torch.testing.assert_close


def layers_of(model):
    return [m for m in model.modules() if hasattr(m, "attention_core")]


def alone(model, name, sequence, target=None):
    """One sequence, without a mask."""
    arguments = {"input_ids": sequence[None]}
    if target is not None:
        arguments["decoder_input_ids"] = target[None]
    return run(model, name, arguments)[0]


@pytest.mark.parametrize("name", MODELS)
def test_softmax_core_is_what_the_model_computed(name):
    """Scale, causality, grouped heads, cross-attention, windows and masks are all the model's."""
    model = build(name)
    arguments = inputs(name)
    if name in TEXT_MODELS:
        arguments = padded(name, arguments["input_ids"], "right")[0]
    with torch.no_grad():
        expected = run(model, name, arguments)
        found = run(lln.hf.apply(model, "softmax"), name, arguments)
    real = arguments.get("decoder_attention_mask", arguments.get("attention_mask"))
    real = torch.ones(found.shape[:2]) if real is None else real
    close(found[real.bool()], expected[real.bool()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("core", ["lln", "lln_diag"])
@pytest.mark.parametrize("name", TEXT_MODELS)
@torch.no_grad()
def test_padded_is_unpadded(name, core, side):
    model = build(name, core, **({"block_size": 4} if core == "lln_diag" else {}))
    sequences = [torch.randint(3, VOCABULARY, (n,)) for n in (N, 5, 9)]
    arguments, places = padded(name, sequences, side)
    found = run(model, name, arguments)
    for row, (sequence, place) in enumerate(zip(sequences, places, strict=True)):
        if name == "bart":  # a row decodes the sequence of another one
            other = len(sequences) - 1 - row
            expected = alone(model, name, sequence, sequences[other])
            place = places[other]
        else:
            expected = alone(model, name, sequence)
        close(found[row, place], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("core", ["lln", "lln_diag"])
@pytest.mark.parametrize("name", TEXT_MODELS)
@torch.no_grad()
def test_masks_that_hide_nothing_or_everything(name, core):
    model = build(name, core)
    arguments = inputs(name, batch=3)
    expected = run(model, name, arguments)
    ones = torch.ones(3, N, dtype=torch.long)
    assert torch.equal(run(model, name, {**arguments, "attention_mask": ones}), expected)
    ones[1] = 0  # a row of padding alone
    found = run(model, name, {**arguments, "attention_mask": ones})
    assert found.isfinite().all()
    close(found[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-5)
    first = {key: x[:1] for key, x in arguments.items()}
    close(run(model, name, first), expected[:1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["vit", "deit"])
@torch.no_grad()
def test_images_do_not_depend_on_their_batch(name):
    model, arguments = build(name, "lln_diag"), inputs(name, batch=3)
    found = run(model, name, arguments)
    first = run(model, name, {"pixel_values": arguments["pixel_values"][:1]})
    close(found[:1], first, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_has_a_core_of_its_own(name):
    model = build(name, "lln")
    layers = layers_of(model)
    assert len(layers) == {"bart": 6, "modernbert": 1}.get(name, 2)
    assert len({layer.attention_core for layer in layers}) == len(layers)
    assert all(layer.attention_core.kv_heads == (2 if name == "llama" else 4) for layer in layers)


def test_scale_is_the_models():
    first, second = layers_of(build("gpt2", "lln"))
    assert first.attention_core.matcher.scale == 2 * second.attention_core.matcher.scale


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_no_future(name):
    model, arguments = build(name, "lln_diag", block_size=4), inputs(name)
    expected = run(model, name, arguments)
    arguments["input_ids"][:, 7:] = 4
    assert torch.equal(run(model, name, arguments)[:, :7], expected[:, :7])


@pytest.mark.parametrize("core", ["softmax", "lln", "lln_diag"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_a_cache_of_keys_gives_what_one_pass_gives(core, kind, masked):
    model = build("llama", core)
    arguments = inputs("llama")
    mask = torch.ones(2, N, dtype=torch.long)
    if masked:
        mask[1, :4] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = run(model, "llama", {**arguments, "attention_mask": mask, "position_ids": positions})
    cache = transformers.DynamicCache(config=model.config)
    if kind == "static":
        cache = transformers.StaticCache(config=model.config, max_cache_len=N + 4)
    parts = []
    for start, end in ((0, 7), (7, 10), (10, 11), (11, N)):
        given = {"attention_mask": mask[:, :end]} if masked else {}
        parts.append(
            model(
                arguments["input_ids"][:, start:end],
                position_ids=positions[:, start:end],
                past_key_values=cache,
                **given,
            ).last_hidden_state
        )
    real = mask.bool()
    close(torch.cat(parts, 1)[real], expected[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("core", ["lln", "lln_diag"])
@pytest.mark.parametrize("name", ["llama", "roberta"])
@pytest.mark.parametrize("by", ["cu_seq_lens", "position_ids"])
@torch.no_grad()
def test_packed_is_separate(name, core, by):
    model = build(name, core)
    sequences = [torch.randint(3, VOCABULARY, (n,)) for n in (5, 1, 6)]
    first = 2 if name == "roberta" else 0  # where its positions begin
    positions = torch.cat([torch.arange(len(s)) + first for s in sequences])[None]
    arguments = {"input_ids": torch.cat(sequences)[None], "position_ids": positions}
    if by == "cu_seq_lens":
        bounds = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
        arguments |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    expected = torch.cat([alone(model, name, sequence) for sequence in sequences])
    close(run(model, name, arguments)[0], expected, rtol=0, atol=1e-5)


def test_packed_rows_are_refused():
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]]).repeat(2, 1)
    arguments = {"input_ids": torch.ones_like(positions), "position_ids": positions}
    with pytest.raises(NotImplementedError, match="batch of one row"):
        run(build("llama", "lln"), "llama", arguments)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_weights_are_those_of_the_model(name):
    model, arguments = build(name), inputs(name)
    model.set_attn_implementation("eager")
    expected = model(**arguments, output_attentions=True)
    found = lln.hf.apply(model, "softmax")(**arguments, output_attentions=True)
    kinds = [key for key in expected if key.endswith("attentions") and expected[key]]
    assert kinds
    for kind in kinds:
        full = [i for i in range(2) if name != "modernbert" or i == 0]  # SDPA has no weights
        assert len(found[kind]) == len(full)
        for i, weights in zip(full, found[kind], strict=True):
            close(weights, expected[kind][i], rtol=0, atol=1e-5)


@torch.no_grad()
def test_weights_only_if_asked(monkeypatch):
    model, arguments = build("roberta", "lln"), inputs("roberta")
    monkeypatch.setattr("lln.integrations.hf.attention.weights_of", None)
    assert model(**arguments).get("attentions") is None


@torch.no_grad()
def test_runs_where_transformers_does_not_tell_what_it_collects(monkeypatch):
    model, arguments = build("roberta", "lln"), inputs("roberta")
    expected = run(model, "roberta", arguments)
    monkeypatch.setattr("lln.integrations.hf.attention.output_capturing", object())
    assert torch.equal(run(model, "roberta", arguments), expected)


def test_dropout_drops_keys():
    """A dropped key is gone for all queries; the mean over draws is the output without dropout."""
    from lln.integrations.hf.attention import attend

    layer = torch.nn.Module()
    layer.attention_core = lln.build_core("softmax", heads=2, head_dim=8)
    q, k = torch.randn(2, 3, 2, 6, 8)
    v = torch.eye(6).expand(3, 2, 6, 6)  # the output is the weights
    plain = attend(layer, q, k, v, None)[0].transpose(1, 2)
    dropped = attend(layer, q, k, v, None, dropout=0.25)[0].transpose(1, 2)
    ratio = dropped / plain
    close(ratio, ratio[:, :, :1].expand_as(ratio))
    assert {round(x, 4) for x in ratio.flatten().tolist()} == {0.0, round(4 / 3, 4)}
    draws = [attend(layer, q, k, v, None, dropout=0.25)[0] for _ in range(2000)]
    close(torch.stack(draws).mean(0).transpose(1, 2), plain, rtol=0.1, atol=0.01)


def test_dropout_is_for_training():
    model, arguments = build("roberta", "lln"), inputs("roberta")
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    layers_of(model)[0].dropout.p = 0.5
    expected = run(model, "roberta", arguments)
    assert torch.equal(run(model, "roberta", arguments), expected)
    model.train()
    assert not torch.equal(run(model, "roberta", arguments), expected)
