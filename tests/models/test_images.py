"""The encoder of images, around every mixer."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import lln

hf = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.models  # noqa: E402
from lln.instruments import record  # noqa: E402
from lln.train.callbacks import measurable  # noqa: E402
from models.encoders import SIZES, build, config, images, tokens  # noqa: E402

KIND = "EncoderForImageClassification"
PATCHES = 9
every_mixer = pytest.mark.parametrize("mixer", lln.available())
every_pooling = pytest.mark.parametrize("pooling", ["first", "mean"])
every_norm = pytest.mark.parametrize("norm", ["post", "pre"])


@every_mixer
@every_norm
@every_pooling
def test_every_weight_learns(mixer, norm, pooling):
    model = build(KIND, mixer, norm=norm, pooling=pooling, num_labels=3).train()
    model(images(), labels=torch.tensor([2, 0])).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


@every_mixer
def test_mixers_know_how_many_tokens_there_are(mixer):
    """The class token counts, and `max_position_embeddings` is that of text."""
    model = build(KIND, mixer)
    assert model.config.image_len == 1 + PATCHES
    shape = (2, 1 + PATCHES, SIZES["hidden_size"])
    assert model.encoder(images()).last_hidden_state.shape == shape
    if mixer in ("linformer", "cosformer"):
        assert {layer.mixer.core.max_len for layer in model.encoder.layers} == {1 + PATCHES}


@every_mixer
@torch.no_grad()
def test_an_image_that_is_not_a_number_spoils_no_other(mixer):
    model, pixels = build(KIND, mixer), images()
    expected = model(pixels).logits[1:]
    pixels[0, 0, 5, 5] = torch.nan
    assert torch.equal(model(pixels).logits[1:], expected)


@every_mixer
@torch.no_grad()
def test_saved_models_are_the_same(mixer, tmp_path):
    model, pixels = build(KIND, mixer, num_labels=3, pooling="mean"), images()
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForImageClassification.from_pretrained(tmp_path)
    assert type(loaded) is lln.models.EncoderForImageClassification
    assert loaded.config.pooling == "mean"
    expected = model(pixels).logits
    assert torch.equal(loaded(pixels).logits, expected)
    half = hf.AutoModelForImageClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    logits = half(pixels).logits
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    base = lln.models.ImageEncoderModel.from_pretrained(tmp_path)
    assert torch.equal(base(pixels)[0], model.encoder(pixels)[0])


def test_text_and_images_are_not_taken_for_each_other(tmp_path):
    build(KIND).save_pretrained(tmp_path / "images")
    build("EncoderForMaskedLM").save_pretrained(tmp_path / "text")
    with pytest.raises(ValueError, match=r"lack embeddings.*as the EncoderForImageClass") as caught:
        hf.AutoModel.from_pretrained(tmp_path / "images")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"lack encoder\.embeddings.*as the EncoderForMaskedLM"):
        hf.AutoModelForImageClassification.from_pretrained(tmp_path / "text")


@torch.no_grad()
def test_patches_stand_in_reading_order():
    model, pixels = build("ImageEncoderModel"), images()
    expected = model.embeddings(pixels)
    pixels[:, :, 4:8, 8:] += 1  # the second row and the third column of patches
    changed = (model.embeddings(pixels) != expected).any(2)
    assert changed.nonzero().tolist() == [[0, 1 + 5], [1, 1 + 5]]


@torch.no_grad()
@every_pooling
def test_what_is_classified_by(pooling):
    model, pixels = build(KIND, pooling=pooling, num_labels=3), images()
    x = model.encoder(pixels).last_hidden_state
    pooled = x[:, 0] if pooling == "first" else x[:, 1:].mean(1)
    assert_close(model(pixels).logits, model.classifier(pooled))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_order_matters_if_positions_are_learned(positions):
    model = build(KIND, "lln", positions=positions, pooling="mean")
    pixels = images()
    moved = model(pixels.roll(4, 2)).logits - model(pixels).logits
    assert (moved.abs().max() > 1e-3) == (positions == "learned")


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["softmax", "lln", "lln_diag", "linformer"])
def test_an_image_may_be_a_single_patch(mixer):
    model = build(KIND, mixer, patch_size=12)
    assert model.config.image_len == 2
    assert model(images(1)).logits.isfinite().all()


def test_losses():
    model, pixels = build(KIND, num_labels=3), images(4)
    labels = torch.tensor([2, 0, 1, 2])
    out = model(pixels, labels=labels)
    assert_close(out.loss, F.cross_entropy(out.logits, labels))
    parts = [
        model(pixels[part], labels=labels[part], num_items_in_batch=4).loss
        for part in (slice(1), slice(1, 4))
    ]
    assert_close(sum(parts), out.loss)
    assert model(pixels).loss is None


@every_norm
def test_hidden_states(norm):
    model, pixels = build(KIND, norm=norm), images()
    states = model(pixels, output_hidden_states=True).hidden_states
    assert len(states) == 1 + SIZES["num_hidden_layers"]
    assert torch.equal(states[-1], model.encoder(pixels).last_hidden_state)
    assert model(pixels).hidden_states is None


@pytest.mark.parametrize("mixer", ["softmax", "lln", "lln_diag"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_half_precision(mixer, dtype):
    model, pixels = build(KIND, mixer, initializer_range=0.1), images()
    exact = model(pixels).logits
    half = model.to(dtype)(pixels).logits  # pixels stay float32, as a data set gives them
    assert half.dtype == dtype
    assert_close(half.float(), exact, rtol=0, atol=40 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("mixer", ["softmax", "lln", "lln_diag", "linformer", "gau"])
def test_autocast(mixer):
    model = build(KIND, mixer, hidden_dropout_prob=0.0, initializer_range=0.1).train()
    pixels, labels = images(), torch.tensor([1, 0])
    expected = model(pixels, labels=labels).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(pixels, labels=labels).loss
    assert loss.dtype == torch.float32
    assert_close(loss, expected, rtol=0.02, atol=0)
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("mixer", ["softmax", "lln_diag"])
def test_gradient_checkpointing_changes_nothing(mixer):
    model, pixels = build(KIND, mixer).train(), images()
    gradients, calls = [], []
    model.encoder.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        torch.manual_seed(3)  # of dropout
        model.zero_grad()
        model(pixels, labels=torch.tensor([1, 0])).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    assert len(calls) == 1 + 2
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_instruments_see_the_cores():
    model = build(KIND, "lln_diag", mixer_options={"matching": 2.5})
    assert measurable(model)
    with record(model) as recording, torch.no_grad():
        model(images())
    seen = [(row["layer"], row["head"], row["name"], row["n"]) for row in recording.rows]
    assert seen == [
        (layer, head, f"encoder.layers.{layer}.mixer.core", 1 + PATCHES)
        for layer in range(2)
        for head in range(4)
    ]
    assert all(row["alpha"] == row["beta"] == 2.5 for row in recording.rows)


def test_how_it_starts():
    model = lln.models.EncoderForImageClassification(
        config(hidden_size=256, initializer_range=0.02)
    )
    embeddings = model.encoder.embeddings
    for part in (embeddings.patches, embeddings.class_token, model.classifier):
        assert_close(part.weight.std().item(), 0.02, rtol=0.2, atol=0)
    assert_close(embeddings.positions.weight.std().item(), 0.02, rtol=0.1, atol=0)
    assert not model.classifier.bias.any()
    assert model.get_input_embeddings() is embeddings.patches


def test_dropout_of_the_classifier():
    assert build(KIND).dropout.p == 0.0
    assert build(KIND, classifier_dropout=0.3).dropout.p == 0.3


@pytest.mark.parametrize(
    ("pixels", "found"),
    [
        (images(size=16), r"float32 \(2, 3, 16, 16\)"),
        (images(channels=1), r"float32 \(2, 1, 12, 12\)"),
        (images()[:, :, :8], r"float32 \(2, 3, 8, 12\)"),
        (images()[0], r"float32 \(3, 12, 12\)"),
        ((images() * 255).byte(), r"uint8 \(2, 3, 12, 12\)"),
    ],
    ids=["size", "channels", "oblong", "no batch", "integers"],
)
def test_other_images_are_refused(pixels, found):
    message = rf"floats \(B, 3, 12, 12\).*num_channels and image_size.*got torch\.{found}"
    with pytest.raises(ValueError, match=message) as caught:
        build(KIND)(pixels)
    assert "\n" not in str(caught.value)


def test_there_are_no_weights_to_return():
    model = build(KIND)
    with pytest.raises(TypeError, match="output_attentions"):
        model(images(), output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(ValueError, match=r"output_attentions.*lln\.instruments"):
        model(images())
    with pytest.raises(TypeError, match="input_ids"):
        model(input_ids=tokens())
