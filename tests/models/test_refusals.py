"""What cannot be done is refused, in one line that says what can."""

import importlib
import importlib.util

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.models
from models.encoders import N, build, config, tokens

CALLS = {
    "a 4-D mask": ({"attention_mask": torch.ones(2, 1, N, N)}, r"attention_mask.*\(2, 1, 13, 13\)"),
    "a mask of another length": ({"attention_mask": torch.ones(2, N + 1).long()}, "attention_mask"),
    "a mask that is added": ({"attention_mask": torch.zeros(2, N)}, "attention_mask.*float32"),
    "ids and embeddings": ({"inputs_embeds": torch.randn(2, N, 32)}, "either input_ids or"),
    "neither": ({"input_ids": None}, "either input_ids or"),
    "too long": ({"input_ids": torch.full((1, 39), 5)}, "38 tokens, got N=39.*max_position"),
}
CONFIGS = {
    "a norm": ({"norm": "sandwich"}, "norm must be one of post, pre, got 'sandwich'"),
    "positions": ({"positions": "rotary"}, "positions must be one of learned, none"),
    "a pooling": ({"pooling": "max"}, "pooling must be one of first, mean, got 'max'"),
    "a part of a patch": ({"image_size": 10}, "multiple of patch_size, got image_size=10, .*=4"),
    "no patch": ({"patch_size": 0}, "patch_size must be a positive integer, got 0"),
    "half a channel": ({"num_channels": 1.5}, "num_channels must be a positive integer"),
    "a typo": ({"hiden_size": 3}, "no hiden_size; valid: .*hidden_size"),
    "a decoder": ({"is_decoder": True}, "no is_decoder"),
    "attention elsewhere": ({"attn_implementation": "sdpa"}, "attn_implementation.*mixer"),
    "a size": ({"mixer_options": {"heads": 3}}, "heads comes from the model"),
    "a tensor": ({"mixer_options": {"block_size": torch.tensor(3)}}, "cannot be saved"),
}


@pytest.mark.parametrize(("arguments", "message"), CALLS.values(), ids=CALLS)
def test_calls(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        build("EncoderModel")(**{"input_ids": tokens(), **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("options", "message"), CONFIGS.values(), ids=CONFIGS)
def test_configs(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        config(**options)
    assert "\n" not in str(caught.value)


def test_unknown_mixers_and_options():
    with pytest.raises(ValueError, match=r"unknown attention 'lnn'; available: .*lln_diag"):
        lln.models.EncoderModel(lln.models.EncoderConfig(mixer="lnn"))
    with pytest.raises(ValueError, match="no option 'blok_size'; valid"):
        lln.models.EncoderModel(config("lln", mixer_options={"blok_size": 3}))
    with pytest.raises(ValueError, match="heads"):
        lln.models.EncoderModel(config("lln", num_attention_heads=5))


def test_there_are_no_weights_to_return():
    model = build("EncoderModel")
    with pytest.raises(TypeError, match="output_attentions"):
        model(tokens(), output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(ValueError, match=r"output_attentions.*lln\.instruments"):
        model(tokens())


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs transformers: pip install 'lln\[train\]'"
    ):
        importlib.reload(lln.models)
