"""With softmax attention and ViT's weights, the encoder of images is ViT."""

import pytest
import torch
from torch.testing import assert_close

hf = pytest.importorskip("transformers", reason="needs the extra `train`")

from lln.models import EncoderForImageClassification, ImageEncoderModel, from_vit  # noqa: E402
from models.encoders import images  # noqa: E402

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.3,
    "num_labels": 3,
}
LARGER = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 1024,
    "initializer_range": 0.1,
}
IMAGES = {
    "colour": {"image_size": 12, "patch_size": 4},
    "grey": {"image_size": 32, "patch_size": 8, "num_channels": 1},
    "five channels": {"image_size": 14, "patch_size": 7, "num_channels": 5},
    "one patch": {"image_size": 6, "patch_size": 6},
    "the usual size": {"image_size": 224, "patch_size": 16},
}
KINDS = {"ViTModel": ImageEncoderModel, "ViTForImageClassification": EncoderForImageClassification}


def vit(kind="ViTForImageClassification", **options):
    """With weights that no initialisation gives."""
    theirs = hf.ViTConfig(**{**IMAGES["colour"], **SIZES, **options})
    model = getattr(hf, kind)(theirs).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    return model


def images_for(model, batch=3):
    return images(batch, model.config.num_channels, model.config.image_size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", IMAGES.values(), ids=IMAGES)
@torch.no_grad()
def test_logits_are_the_same(kind, sizes):
    theirs = vit(kind, **sizes)
    ours, pixels = from_vit(theirs), images_for(theirs)
    assert type(ours) is KINDS[kind]
    expected = theirs(pixels)[0]
    assert expected.abs().max() > 0.5
    assert_close(ours(pixels)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [LARGER, {"hidden_act": "relu"}], ids=["larger", "relu"])
@torch.no_grad()
def test_other_vits(options):
    theirs = vit(**options)
    pixels = images_for(theirs)
    expected = theirs(pixels).logits
    assert expected.abs().max() > 0.5
    assert_close(from_vit(theirs)(pixels).logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_hidden_states_are_the_same():
    theirs = vit()
    pixels = images_for(theirs)
    expected = theirs(pixels, output_hidden_states=True).hidden_states
    states = from_vit(theirs)(pixels, output_hidden_states=True).hidden_states
    assert len(states) == len(expected) == 3
    for ours, other in zip(states[:-1], expected[:-1], strict=True):  # our last one is normed
        assert_close(ours, other, rtol=0, atol=1e-5)


def test_gradients_are_the_same():
    theirs = vit()
    ours, pixels, labels = from_vit(theirs), images_for(theirs), torch.tensor([2, 0, 1])
    losses = [model(pixels, labels=labels).loss for model in (theirs, ours)]
    assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    embeddings, other = ours.encoder.embeddings, theirs.vit.embeddings
    for one, two in (
        (ours.encoder.layers[0].mixer.query.weight, theirs.vit.layers[0].attention.q_proj.weight),
        (embeddings.patches.weight, other.patch_embeddings.projection.weight),
        (embeddings.positions.weight, other.position_embeddings),
        (embeddings.class_token.weight, other.cls_token),
    ):
        assert_close(one.grad, two.grad.view_as(one), rtol=1e-4, atol=1e-6)


def test_the_config_is_carried_over():
    names = {0: "cat", 1: "dog", 2: "neither"}
    ours = from_vit(vit(id2label=names, hidden_dropout_prob=0.2).half().train())
    assert ours.dtype == torch.float16
    assert ours.training
    assert ours.config.id2label == names
    assert ours.encoder.embeddings.dropout.p == 0.2
    assert (ours.config.mixer, ours.config.norm, ours.config.image_len) == ("softmax", "pre", 10)


def test_weights_are_copies():
    theirs = vit()
    ours = from_vit(theirs)
    with torch.no_grad():
        theirs.classifier.weight.zero_()
    assert ours.classifier.weight.abs().sum() > 0


def test_what_is_no_such_vit_is_refused():
    with pytest.raises(TypeError, match=r"ViTForImageClassification.*BertModel"):
        from_vit(hf.BertModel(hf.BertConfig(**SIZES)))
    for options, message in (
        ({"qkv_bias": False}, "qkv_bias must be True"),
        ({"image_size": 13}, "image_size must be a multiple of patch_size.*13.*4"),
        ({"image_size": [12, 8]}, r"image_size must be a positive integer, got \[12, 8\]"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            from_vit(vit(**options))
        assert "\n" not in str(caught.value)
