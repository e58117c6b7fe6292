"""The encoder, around every mixer."""

import pytest
import torch
from torch.testing import assert_close

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

from lln.instruments import record  # noqa: E402
from lln.models import EncoderForMaskedLM, EncoderModel  # noqa: E402
from models.encoders import PAD, SIZES, VOCABULARY, build, config, some_labels, tokens  # noqa: E402

MASKS = {
    "left": [False] * 4 + [True] * 9,
    "right": [True] * 9 + [False] * 4,
    "holes": [True, False, True, True, False, True, True, True, False, True, True, False, True],
}
every_mixer = pytest.mark.parametrize("mixer", lln.available())
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
every_norm = pytest.mark.parametrize("norm", ["post", "pre"])


@every_mixer
@every_norm
def test_every_weight_learns(mixer, norm):
    model, ids = build("EncoderForMaskedLM", mixer, norm=norm), tokens()
    model.train()
    model(ids, labels=ids).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


@every_mixer
@every_mask
def test_a_padded_sequence_is_the_short_sequence_alone(mixer, mask):
    model, keep, ids = build("EncoderForMaskedLM", mixer).double(), torch.tensor(mask), tokens()
    alone = model(ids[:1, keep]).logits
    for padding in (PAD, 7):  # what stands there does not matter
        padded = ids.clone()
        padded[0, ~keep] = padding
        attention_mask = torch.stack([keep, torch.ones_like(keep)])
        out = model(padded, attention_mask=attention_mask).logits
        assert_close(out[:1, keep], alone, rtol=0, atol=1e-9)
        assert_close(out[1:], model(ids[1:]).logits, rtol=0, atol=1e-9)
        assert torch.equal(model(padded, attention_mask=attention_mask.long()).logits, out)


@every_mask
def test_padded_sentences_are_classified_as_if_alone(mask):
    model = build("EncoderForSequenceClassification", num_labels=3)
    keep, ids = torch.tensor(mask), tokens(1)
    padded = model(ids, attention_mask=keep[None]).logits
    assert_close(padded, model(ids[:, keep]).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "none"])
def test_order_matters_if_positions_are_learned(positions):
    model, ids = build("EncoderModel", "lln", positions=positions), tokens(1)
    order = torch.randperm(ids.shape[1])
    moved = model(ids[:, order]).last_hidden_state
    same = model(ids).last_hidden_state[:, order]
    if positions == "none":
        assert_close(moved, same, rtol=0, atol=1e-5)
    else:
        assert (moved - same).abs().max() > 0.1


def test_embeddings_may_be_given():
    model, ids = build("EncoderModel"), tokens()
    mask = torch.tensor(MASKS["left"]).expand(2, -1)
    embeds = model.get_input_embeddings()(ids)
    expected = model(ids, attention_mask=mask).last_hidden_state
    assert torch.equal(model(inputs_embeds=embeds, attention_mask=mask)[0], expected)


def test_sentence_pairs():
    model, ids = build("EncoderModel", type_vocab_size=2), tokens()
    second = (torch.arange(ids.shape[1]) > 5).long().expand(2, -1)
    first = model(ids).last_hidden_state
    assert torch.equal(model(ids, token_type_ids=torch.zeros_like(ids))[0], first)
    assert (model(ids, token_type_ids=second)[0] - first).abs().max() > 0.1


@every_norm
def test_hidden_states(norm):
    model, ids = build("EncoderModel", norm=norm), tokens()
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 1 + SIZES["num_hidden_layers"]
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert model(ids).hidden_states is None
    assert torch.equal(model(ids, return_dict=False)[0], out.last_hidden_state)


@every_mixer
def test_autocast(mixer):
    model, ids = build("EncoderForMaskedLM", mixer, hidden_dropout_prob=0.0), tokens()
    expected = model.train()(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    assert loss.dtype == torch.float32
    assert_close(loss, expected, rtol=0.02, atol=0)
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("mixer", ["softmax", "lln_diag", "gau"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_compiles_into_one_graph(mixer, training):
    model, ids = build("EncoderForMaskedLM", mixer, hidden_dropout_prob=0.0), tokens()
    model.train(training)
    inputs = {"input_ids": ids, "attention_mask": torch.rand(ids.shape) > 0.3, "labels": ids}
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(**inputs).loss, model(**inputs).loss)


@pytest.mark.parametrize("mixer", ["softmax", "lln_diag", "tnn"])
def test_gradient_checkpointing_changes_nothing(mixer):
    model, ids = build("EncoderForMaskedLM", mixer).train(), tokens()
    labels, gradients, calls = some_labels(ids), [], []
    model.encoder.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        torch.manual_seed(3)  # of dropout
        model.zero_grad()
        model(ids, labels=labels).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    assert len(calls) == 1 + 2
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_the_encoder_starts_its_own_weights():
    model = EncoderForMaskedLM(config("hedgehog", hidden_size=128, initializer_range=0.02))
    layer = model.encoder.layers[1]
    for part in (
        layer.mixer.query,
        layer.mixer.out,
        layer.feed_forward.expand,
        model.lm_head.dense,
    ):
        assert_close(part.weight.std().item(), 0.02, rtol=0.1, atol=0)
        assert not part.bias.any()
    words = model.encoder.embeddings.word_embeddings.weight
    assert_close(words[2:].std().item(), 0.02, rtol=0.1, atol=0)
    assert not words[PAD].any()


@every_mixer
def test_mixers_start_by_themselves(mixer):
    torch.manual_seed(0)
    model = EncoderModel(config(mixer))
    torch.manual_seed(0)
    alone = lln.build(
        mixer, dim=32, heads=4, max_len=38, layer=1, layers=2, **config(mixer).mixer_options
    )
    of_core = "core." if lln.registry.entry(mixer).kind == "core" else ""
    ours, theirs = model.layers[1].mixer.state_dict(), alone.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        if not name.startswith(of_core):
            continue
        if name in dict(alone.named_parameters()) and theirs[name].unique().numel() > 2:
            spread = ours[name].std(), theirs[name].std()  # drawn at random
            assert_close(*spread, rtol=0.5, atol=0)
            assert abs(spread[0] - 0.3) > 0.02, "drawn as the encoder's"
        else:
            assert torch.equal(ours[name], theirs[name]), name


def test_words_of_the_head_are_those_of_the_embeddings():
    model = build("EncoderForMaskedLM")
    assert model.lm_head.decoder.weight is model.encoder.embeddings.word_embeddings.weight
    ids = tokens()
    before = model(ids).logits
    model.resize_token_embeddings(VOCABULARY + 5, mean_resizing=False)
    assert model.config.vocab_size == VOCABULARY + 5
    assert model.lm_head.decoder.weight is model.encoder.embeddings.word_embeddings.weight
    after = model(ids).logits
    assert after.shape[2] == VOCABULARY + 5
    assert_close(after[..., :VOCABULARY], before)


def test_instruments_see_the_cores():
    model, ids = build("EncoderForMaskedLM", "lln_diag"), tokens()
    with record(model) as recording, torch.no_grad():
        model(ids)
    seen = [(row["layer"], row["head"], row["name"]) for row in recording.rows]
    assert seen == [
        (layer, head, f"encoder.layers.{layer}.mixer.core")
        for layer in range(2)
        for head in range(4)
    ]
    assert all(row["alpha"] > 0 and row["entropy"] > 0 for row in recording.rows)
