"""Decoders that attend to an encoder: BERT with cross-attention, and what is made of it."""

import pytest
import torch

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import MODELS, VOCABULARY  # noqa: E402
from lln.integrations.hf.cache import RecurrentLayer  # noqa: E402

close = torch.testing.assert_close
CORES = {"softmax": {}, "lln": {}, "lln_diag": {"block_size": 4}, "hedgehog": {}}
DECODER = {"is_decoder": True, "add_cross_attention": True, "bos_token_id": 2, "eos_token_id": None}
NEW = 5


def bert(**options):
    return MODELS["bert"][1](**options)


@pytest.fixture(params=CORES)
def core(request):
    return request.param


@pytest.fixture
def encoded():
    """What an encoder made of three sequences; two of them are padded."""
    mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    return {"encoder_hidden_states": torch.randn(3, 6, 32), "encoder_attention_mask": mask.long()}


@pytest.fixture
def decoder(core, encoded):
    torch.manual_seed(0)
    model = transformers.BertLMHeadModel(bert(**DECODER)).eval()
    return calibrated(lln.hf.apply(model, core, **CORES[core]), core, **ids(), **encoded)


def ids(n=7):
    draw = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(3, VOCABULARY, (3, n), generator=draw)}


def calibrated(model, core, **arguments):
    if core.startswith("lln"):
        with lln.matching.calibrating(model), torch.no_grad():
            model(**arguments)
    return model


@torch.no_grad()
def logits(model, **arguments):
    return model(**arguments, use_cache=False).logits


def test_cross_attention_is_the_models(encoded):
    torch.manual_seed(0)
    model = transformers.BertLMHeadModel(bert(**DECODER)).eval()
    expected = logits(model, **ids(), **encoded)
    found = logits(lln.hf.apply(model, "softmax"), **ids(), **encoded)
    close(found, expected, rtol=0, atol=1e-5)


def test_padding_of_the_encoder_changes_nothing(decoder, encoded):
    expected = logits(decoder, **ids(), **encoded)
    states, mask = encoded["encoder_hidden_states"], encoded["encoder_attention_mask"].bool()
    states[~mask] = 99.0
    assert torch.equal(logits(decoder, **ids(), **encoded), expected)
    for row in range(3):
        alone = logits(
            decoder,
            input_ids=ids()["input_ids"][row : row + 1],
            encoder_hidden_states=states[row, mask[row]][None],
        )
        close(alone, expected[row : row + 1], rtol=0, atol=1e-5)


def test_the_encoder_matters_and_the_future_does_not(decoder, encoded):
    expected = logits(decoder, **ids(), **encoded)
    other = ids()
    other["input_ids"][:, 4:] = 5
    assert torch.equal(logits(decoder, **other, **encoded)[:, :4], expected[:, :4])
    encoded["encoder_hidden_states"][:, 0] += 1
    assert (logits(decoder, **ids(), **encoded) - expected).abs().max() > 1e-2


def test_backward(decoder, encoded):
    encoded["encoder_hidden_states"].requires_grad_()
    decoder.train()
    decoder(**ids(), **encoded, labels=ids()["input_ids"], use_cache=False).loss.backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in decoder.parameters())
    gradient = encoded["encoder_hidden_states"].grad
    assert gradient[encoded["encoder_attention_mask"].bool()].abs().sum() > 0
    assert not gradient[~encoded["encoder_attention_mask"].bool()].any()


def generate(model, given, **options):
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    return model.generate(**given, **options, output_logits=True, return_dict_in_generate=True)


def assert_same(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    close(torch.stack(found.logits), torch.stack(expected.logits), rtol=0, atol=1e-4)


@pytest.mark.parametrize("beams", [1, 2])
def test_a_decoder_generates(decoder, encoded, beams):
    """With a cache of ours: the one that transformers makes here has no place for an encoder."""
    given = {**ids(), **encoded}
    found = generate(decoder, given, num_beams=beams, past_key_values=lln.hf.cache(decoder))
    assert_same(found, generate(decoder, given, num_beams=beams, use_cache=False))


@pytest.fixture
def translator(core):
    """Its parts know other configurations than their layers do."""
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(bert()),
        decoder=transformers.BertLMHeadModel(bert(**DECODER)),
    ).eval()
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id = 2, 1
    lln.hf.apply(model, core, **CORES[core])
    return calibrated(model, core, **ids(), decoder_input_ids=ids(4)["input_ids"])


@pytest.fixture
def sentences():
    mask = torch.arange(7) < torch.tensor([[7], [4], [2]])
    return {**ids(), "attention_mask": mask.long()}


@pytest.mark.parametrize("beams", [1, 2])
def test_an_encoder_decoder_generates(translator, core, sentences, beams):
    found = generate(translator, sentences, num_beams=beams)
    assert_same(found, generate(translator, sentences, num_beams=beams, use_cache=False))
    layers = found.past_key_values.self_attention_cache.layers
    assert all((type(x) is RecurrentLayer) == core.startswith("lln") for x in layers)


def test_an_encoder_decoder_comes_back(translator, sentences, tmp_path):
    sentences["decoder_input_ids"] = ids(4)["input_ids"]
    expected = logits(translator, **sentences)
    for folder in (tmp_path / "first", tmp_path / "second"):
        translator.save_pretrained(folder)
        translator = lln.hf.load(folder)
        assert torch.equal(logits(translator, **sentences), expected)
