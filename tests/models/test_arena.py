"""What the Long Range Arena's tasks need: means over real tokens, and pairs of texts."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import lln

pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.models
from lln.instruments import record
from lln.models.pooling import pool
from models.encoders import PAD, N, build, tokens

MEAN, MATCHING = "EncoderForSequenceClassification", "EncoderForSequenceMatching"
every_pooling = pytest.mark.parametrize("pooling", ["first", "mean"])
every_mixer = pytest.mark.parametrize("mixer", lln.available())
MASK = torch.tensor([[False] * 2 + [True] * 8 + [False] * 3, [True] * 5 + [False] * 8])


def pair(n=N, m=9):
    """Texts of two lengths with masks."""
    return {
        "input_ids": tokens(n=n),
        "attention_mask": torch.arange(n) < torch.tensor([[n], [n - 3]]),
        "other_input_ids": tokens(n=m),
        "other_attention_mask": torch.arange(m) < torch.tensor([[2], [m]]),
    }


def alone(inputs, row):
    """One pair of a batch, without padding."""
    found = {}
    for name in ("input_ids", "other_input_ids"):
        mask = inputs[name.replace("input_ids", "attention_mask")][row]
        found[name] = inputs[name][row : row + 1, mask]
    return found


def test_the_mean_is_that_of_real_tokens():
    x = torch.randn(2, N, 4)
    expected = torch.stack([x[0, 2:10].mean(0), x[1, :5].mean(0)])
    x[~MASK] = torch.nan  # what stands there does not matter
    assert_close(pool(x, MASK, "mean"), expected)
    assert_close(pool(x[:, 2:5], None, "mean"), x[:, 2:5].mean(1))
    assert torch.equal(pool(x, MASK, "first"), torch.stack([x[0, 2], x[1, 0]]))


def test_the_mean_of_nothing_is_zero():
    x = torch.randn(2, N, 4, requires_grad=True)
    mask = MASK & torch.tensor([[True], [False]])
    pooled = pool(x, mask, "mean")
    assert not pooled[1].any()
    pooled.sum().backward()
    assert x.grad.isfinite().all()


def test_long_sequences_do_not_overflow_in_half_precision():
    x = torch.full((1, 4096, 2), 100.0, dtype=torch.float16)
    for mask in (None, torch.ones(1, 4096, dtype=torch.bool)):
        assert_close(pool(x, mask, "mean"), x[:, 0])


@every_mixer
def test_means_classify_padded_sequences_as_if_alone(mixer):
    model, ids = build(MEAN, mixer, pooling="mean", num_labels=3).double(), tokens()
    both = model(ids, attention_mask=MASK).logits
    for row in range(2):
        assert_close(model(ids[row : row + 1, MASK[row]]).logits, both[row : row + 1])


@torch.no_grad()
def test_the_head_of_means():
    model, ids = build(MEAN, pooling="mean", num_labels=3), tokens()
    x = model.encoder(ids, attention_mask=MASK).last_hidden_state
    pooled = torch.stack([x[0, 2:10].mean(0), x[1, :5].mean(0)])
    head = model.classifier
    assert head.dense.weight.shape == (48, 32)
    expected = head.out(F.relu(head.dense(pooled)))
    assert_close(model(ids, attention_mask=MASK).logits, expected)


@torch.no_grad()
@every_pooling
def test_pairs_are_two_texts_that_do_not_see_each_other(pooling):
    model, inputs = build(MATCHING, pooling=pooling, num_labels=3), pair()
    a, b = (
        pool(model.encoder(ids, mask).last_hidden_state, mask, pooling)
        for ids, mask in (
            (inputs["input_ids"], inputs["attention_mask"]),
            (inputs["other_input_ids"], inputs["other_attention_mask"]),
        )
    )
    head = model.classifier
    assert head.dense.weight.shape == (48, 4 * 32)
    expected = head.out(F.relu(head.dense(torch.cat([a, b, a * b, a - b], 1))))
    assert_close(model(**inputs).logits, expected, rtol=0, atol=1e-5)


@every_mixer
def test_padded_pairs_are_matched_as_if_alone(mixer):
    model, inputs = build(MATCHING, mixer, pooling="mean").double(), pair()
    both = model(**inputs).logits
    for row in range(2):
        assert_close(model(**alone(inputs, row)).logits, both[row : row + 1])
    for name in ("input_ids", "other_input_ids"):  # what stands at padding does not matter
        mask = inputs[name.replace("input_ids", "attention_mask")]
        inputs[name] = inputs[name].masked_fill(~mask, PAD)
    assert_close(model(**inputs).logits, both)


@every_mixer
@every_pooling
def test_every_weight_learns_from_pairs(mixer, pooling):
    model = build(MATCHING, mixer, pooling=pooling).train()
    model(**pair(), labels=torch.tensor([1, 0])).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


def test_losses_of_pairs():
    model, inputs = build(MATCHING, num_labels=3), pair()
    labels = torch.tensor([2, 0])
    out = model(**inputs, labels=labels)
    assert_close(out.loss, F.cross_entropy(out.logits, labels))
    half = model(**inputs, labels=labels, num_items_in_batch=4).loss
    assert_close(half, out.loss / 2)
    states = model(**inputs, output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(4, N, 32)] * 3


@pytest.mark.parametrize("kind", [MEAN, MATCHING])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@every_pooling
def test_one_token_and_none(kind, dtype, pooling):
    model = build(kind, pooling=pooling, initializer_range=0.1).to(dtype)
    inputs = pair() if kind == MATCHING else {"input_ids": tokens(), "attention_mask": MASK}
    expected = model(**inputs).logits[1]
    for length in (1, 0):
        for name in inputs:
            if name.endswith("mask"):
                inputs[name] = inputs[name].clone()
                inputs[name][0, length:] = False
        out = model(**inputs, labels=torch.tensor([1, 0]))
        assert out.logits.dtype == dtype
        assert out.logits.isfinite().all()
        assert_close(out.logits[1], expected)
        model.zero_grad()
        out.loss.backward()
        assert all(weight.grad.isfinite().all() for weight in model.parameters())
    one = {name: ids[:, :1] for name, ids in inputs.items() if name.endswith("ids")}
    assert model(**one).logits.isfinite().all()


def test_gradient_checkpointing_changes_nothing():
    model, inputs, gradients = build(MATCHING).train(), pair(), []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        torch.manual_seed(3)  # of dropout
        model.zero_grad()
        model(**inputs, labels=torch.tensor([1, 0])).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_a_layer_is_measured_once_for_both_texts():
    model = build(MATCHING, "lln")
    with record(model) as recording, torch.no_grad():
        model(**pair())
    assert [(row["layer"], row["head"]) for row in recording.rows] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]


@torch.no_grad()
def test_saved_models_are_the_same(tmp_path):
    for kind, inputs in ((MEAN, {"input_ids": tokens()}), (MATCHING, pair())):
        model = build(kind, pooling="mean", num_labels=3)
        model.save_pretrained(tmp_path / kind)
        loaded = getattr(lln.models, kind).from_pretrained(tmp_path / kind)
        assert loaded.config.pooling == "mean"
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    pretrained = build("EncoderForMaskedLM")
    pretrained.save_pretrained(tmp_path / "masked")
    headed = lln.models.EncoderForSequenceMatching.from_pretrained(tmp_path / "masked")
    ids = tokens()
    assert torch.equal(headed.encoder(ids)[0], pretrained.encoder(ids)[0])


def test_dropout_of_the_head():
    for kind in (MEAN, MATCHING):
        assert build(kind, pooling="mean").classifier.dropout.p == 0.0
        assert build(kind, pooling="mean", classifier_dropout=0.3).classifier.dropout.p == 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"other_input_ids": None}, "other_input_ids must be the 2 second texts.*got None"),
        ({"other_input_ids": tokens(3)}, "other_input_ids must be the 2 second texts.*got 3"),
        ({"attention_mask": torch.ones(2, N)}, "^attention_mask must be bool.*float32"),
        ({"other_attention_mask": torch.ones(2, 3).bool()}, "^other_attention_mask.*9.*got.*3"),
        ({"other_input_ids": tokens(2, 39), "other_attention_mask": None}, "38 tokens, got N=39"),
    ],
    ids=["no other", "another batch", "a float mask", "a short mask", "too long"],
)
def test_other_pairs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(MATCHING)(**{**pair(), **changes})
    assert "\n" not in str(caught.value)
