"""With softmax attention and RoBERTa's weights, the encoder is RoBERTa."""

import pytest
import torch
from torch.testing import assert_close

hf = pytest.importorskip("transformers", reason="needs the extra `train`")

from lln.models import EncoderConfig, EncoderModel, from_roberta  # noqa: E402
from models.encoders import PAD, SIZES, some_labels, tokens  # noqa: E402

LARGER = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 1024,
    "initializer_range": 0.1,
}
KINDS = ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification")

PRE_NORM = {
    "roberta_prelayernorm.": "",
    "encoder.layer.": "layers.",
    "attention.self.": "mixer.",
    "attention.output.dense.": "mixer.out.",
    "attention.LayerNorm.": "mixer_norm.",
    "intermediate.dense.": "feed_forward.expand.",
    "intermediate.LayerNorm.": "feed_forward_norm.",
    "output.dense.": "feed_forward.contract.",
    "embeddings.LayerNorm.": "embeddings.norm.",
    "LayerNorm.": "norm.",
}


def roberta(kind, **options):
    """With weights that no initialisation gives."""
    config = hf.RobertaConfig(**{**SIZES, "layer_norm_eps": 1e-6, "num_labels": 3, **options})
    model = getattr(hf, kind)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embeddings" not in name:  # those of padding are 0
                weight.add_(0.02 * torch.randn_like(weight))
    return model


def padded(side):
    ids = tokens(3)
    mask = torch.ones_like(ids)
    for row, n in enumerate((0, 4, 7)):
        mask[row, : n if side == "left" else 0] = 0
        mask[row, ids.shape[1] - (n if side == "right" else 0) :] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("sizes", [{}, LARGER], ids=["tiny", "larger"])
@torch.no_grad()
def test_logits_are_the_same(kind, side, sizes):
    theirs, inputs = roberta(kind, **sizes), padded(side)
    expected, actual = theirs(**inputs)[0], from_roberta(theirs)(**inputs)[0]
    assert expected.abs().max() > 0.5
    if expected.dim() == 3:  # what stands at padding means nothing
        keep = inputs["attention_mask"].bool()
        expected, actual = expected[keep], actual[keep]
    elif side == "left":  # transformers classifies by the padding there
        bare = [row[row != PAD][None] for row in inputs["input_ids"]]
        expected = torch.cat([theirs(row)[0] for row in bare])
    assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"hidden_act": "relu"}, {"type_vocab_size": 2}])
@torch.no_grad()
def test_other_roberta_s(options):
    theirs, inputs = roberta("RobertaForMaskedLM", **options), {"input_ids": tokens()}
    inputs["token_type_ids"] = tokens() % theirs.config.type_vocab_size
    assert_close(from_roberta(theirs)(**inputs).logits, theirs(**inputs).logits)


@torch.no_grad()
def test_without_a_mask_padding_is_read_as_transformers_reads_it():
    theirs, ids = roberta("RobertaForMaskedLM"), tokens()
    ids[0, :3] = PAD
    assert_close(from_roberta(theirs)(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


def test_gradients_are_the_same():
    theirs = roberta("RobertaForMaskedLM")
    ours, inputs = from_roberta(theirs), {"input_ids": tokens()}
    inputs["labels"] = some_labels(inputs["input_ids"])
    losses = [model(**inputs).loss for model in (theirs, ours)]
    assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    assert_close(
        ours.encoder.layers[0].mixer.query.weight.grad,
        theirs.roberta.encoder.layer[0].attention.self.query.weight.grad,
    )
    assert_close(ours.get_input_embeddings().weight.grad, theirs.get_input_embeddings().weight.grad)


def test_the_config_is_carried_over():
    names = {0: "no", 1: "yes", 2: "maybe"}
    theirs = roberta("RobertaForSequenceClassification", id2label=names, classifier_dropout=0.3)
    ours = from_roberta(theirs.half().train())
    assert ours.dtype == torch.float16
    assert ours.training
    assert ours.config.id2label == names
    assert ours.classifier.dropout.p == 0.3
    assert ours.config.max_len == 38


def test_what_is_not_a_roberta_encoder_is_refused():
    with pytest.raises(TypeError, match=r"RobertaForMaskedLM.*BertModel"):
        from_roberta(hf.BertModel(hf.BertConfig(**SIZES)))
    with pytest.raises(ValueError, match="is_decoder"):
        from_roberta(roberta("RobertaModel", is_decoder=True))


@torch.no_grad()
def test_norms_may_come_first():
    theirs = hf.RobertaPreLayerNormModel(hf.RobertaPreLayerNormConfig(**SIZES)).eval()
    sizes = {**SIZES, "type_vocab_size": 2, "layer_norm_eps": theirs.config.layer_norm_eps}
    config = EncoderConfig(mixer="softmax", norm="pre", **sizes)
    ours, weights = EncoderModel(config).eval(), {}
    for name, weight in theirs.state_dict().items():
        weight.add_(0.02 * torch.randn_like(weight))
        for old, new in PRE_NORM.items():
            name = name.replace(old, new)
        if "pooler" not in name:
            weights[name] = weight
    ours.load_state_dict(weights)
    ids = tokens()
    assert_close(ours(ids)[0], theirs(ids).last_hidden_state, rtol=0, atol=1e-5)
