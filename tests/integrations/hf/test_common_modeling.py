"""transformers' generic checks of what a model computes, with our attention in it.

Its tests are not installed with it. These are the checks of its `ModelTesterMixin` (as of 5.16)
that apply to RoBERTa, ViT and Llama, each with a test of the same name:

- test_determinism: two passes agree
- test_batching_equivalence: a batch is its rows, each alone
- test_attention_outputs: weights of each layer, (B, H, N, N), by argument alone
- test_hidden_states_output: states before and after each layer
- test_retain_grad_hidden_states_attentions: gradients of states; weights carry none, and say so
- test_model_outputs_equivalence: tuples hold what dictionaries hold
- test_capture_outputs_decorator: what one call captures does not reach the next
- test_feed_forward_chunking: chunks change nothing
- test_inputs_embeds_matches_input_ids: embeddings in place of tokens
- test_resize_tokens_embeddings: a larger and a smaller vocabulary
- test_model_get_set_embeddings: embeddings can be replaced
- test_eager_matches_sdpa_inference: our softmax is the model's, eager and SDPA
- test_can_set_attention_dynamically: to others and back
- test_config_attn_implementation_setter: the configuration knows what runs
- test_forward_signature: the model takes the arguments that it always took
- test_custom_4d_attention_mask: refused

Training is in `test_common_training.py`, saving, loading and initialising in
`test_common_loading.py`, generating in `test_common_generation.py`; compiling (torch_compile_*,
sdpa_can_compile_dynamic) and exporting (torch_export_*) in `test_compile.py`. Not applicable:

- flash_attn_*, flex_attention_*, sdpa_can_dispatch_on_flash, sliding_window_mask,
  eager_matches_batched_and_grouped_inference: of other implementations
- *_composite_models, get_{text,image,audio,video}_features_*, encoder_decoder_loss_no_double_shift,
  internal_model_config_and_subconfig_are_same: none of the three has parts (see CLIP in
  `test_persistence.py` and encoder-decoders in `test_cross_attention.py`)
- cpu_offload, disk_offload_*, model_parallelism, multi_gpu_*, *_deepspeed*, tp_*, ep_*, fsdp_*:
  need several devices
- num_layers_is_small, model_is_small, generation_tester_mixin_inheritance, model_main_input_name,
  model_base_model_prefix, format_of_can_record_outputs, model_forward_default_config_values,
  resize_position_vector_embeddings, model_rope_scaling_*, kernels_can_load_without_crashing,
  peft_*: of the model's class or of another package, whichever attention runs
"""

import inspect

import pytest
import torch

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.heads import (  # noqa: E402
    EVERY,
    HEADS,
    SOME,
    TEXT,
    assert_covered,
    config_of,
    headed,
    labelled,
    logits,
)
from integrations.hf.models import VOCABULARY, N, inputs, padded  # noqa: E402

close = torch.testing.assert_close
every = pytest.mark.parametrize(("name", "core"), EVERY)
some = pytest.mark.parametrize(("name", "core"), SOME)
text = pytest.mark.parametrize(("name", "core"), TEXT)
length = {"vit": 17}


def test_the_list_is_covered():
    assert_covered(globals())


@every
def test_determinism(name, core):
    model, arguments = headed(name, core), inputs(name)
    assert torch.equal(logits(model, arguments), logits(model, arguments))


@every
def test_batching_equivalence(name, core):
    model, arguments = headed(name, core), inputs(name, batch=3)
    together = logits(model, arguments)
    for row in range(3):
        alone = logits(model, {key: x[row : row + 1] for key, x in arguments.items()})
        close(together[row : row + 1], alone, rtol=0, atol=1e-5)


@every
def test_attention_outputs(name, core):
    model, arguments = headed(name, core), inputs(name)
    n = length.get(name, N)
    if name != "vit":
        arguments["attention_mask"] = torch.ones(2, n, dtype=torch.long)
        arguments["attention_mask"][1, 9:] = 0
    with torch.no_grad():
        found = model(**arguments, output_attentions=True)
        assert model(**arguments).get("attentions") is None
    assert [tuple(x.shape) for x in found.attentions] == [(2, 4, n, n)] * 2
    for weights in found.attentions:
        # Also of a padded query: it attends to real keys, as with softmax.
        close(weights.sum(-1), torch.ones(2, 4, n))
        if name != "vit":
            assert not weights[1, :, :, 9:].any()
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True  # for eager attention alone, says transformers


@every
def test_hidden_states_output(name, core):
    model, arguments = headed(name, core), inputs(name)
    with torch.no_grad():
        found = model(**arguments, output_hidden_states=True).hidden_states
        model.config.output_hidden_states = True
        by_config = model(**arguments).hidden_states
    assert [tuple(x.shape) for x in found] == [(2, length.get(name, N), 32)] * 3
    assert all(torch.equal(x, y) for x, y in zip(found, by_config, strict=True))


@every
def test_retain_grad_hidden_states_attentions(name, core):
    model, arguments = headed(name, core), inputs(name)
    found = model(**arguments, output_hidden_states=True, output_attentions=True)
    states = found.hidden_states[0]
    states.retain_grad()
    found.logits.flatten()[0].backward()
    assert states.grad.abs().sum() > 0
    assert not any(weights.requires_grad for weights in found.attentions)


@every
def test_model_outputs_equivalence(name, core):
    model, arguments = headed(name, core), labelled(name)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    if name == "llama":
        wanted["use_cache"] = False
    with torch.no_grad():
        found = model(**arguments, **wanted, return_dict=False)
        expected = model(**arguments, **wanted).to_tuple()
    close(found, expected, rtol=0, atol=0)


@some
def test_capture_outputs_decorator(name, core):
    model, arguments = headed(name, core), inputs(name)
    with torch.no_grad():
        first = model(**arguments, output_attentions=True)
        second = model(**arguments, output_attentions=True)
        plain = model(**arguments)
    assert len(first.attentions) == len(second.attentions) == 2
    assert plain.get("attentions") is None
    assert torch.equal(plain.logits, first.logits)


@pytest.mark.parametrize("core", ["lln", "lln_diag", "hedgehog"])
def test_feed_forward_chunking(core):
    model, arguments = headed("roberta", core), inputs("roberta")
    expected = logits(model, arguments)
    for part in model.modules():
        if hasattr(part, "chunk_size_feed_forward"):
            part.chunk_size_feed_forward = 1
    close(logits(model, arguments), expected, rtol=0, atol=1e-5)


@text
def test_inputs_embeds_matches_input_ids(name, core):
    model, arguments = headed(name, core), inputs(name)
    embeddings = model.get_input_embeddings()(arguments["input_ids"])
    # RoBERTa's positions begin after its padding token, and there is none here.
    close(logits(model, {"inputs_embeds": embeddings}), logits(model, arguments), rtol=0, atol=0)


@text
def test_resize_tokens_embeddings(name, core):
    model, arguments = headed(name, core), inputs(name)
    expected = logits(model, arguments)
    model.resize_token_embeddings(VOCABULARY + 7)
    close(logits(model, arguments)[..., :VOCABULARY], expected, rtol=0, atol=1e-5)
    model.resize_token_embeddings(VOCABULARY)
    close(logits(model, arguments), expected, rtol=0, atol=1e-5)
    assert model.config.vocab_size == VOCABULARY


@text
def test_model_get_set_embeddings(name, core):
    model = headed(name, core)
    other = torch.nn.Embedding(VOCABULARY, 32)
    model.set_input_embeddings(other)
    assert model.get_input_embeddings() is other
    assert logits(model, inputs(name)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, None) for name in HEADS]
    + [(name, side) for name in ("roberta", "llama") for side in ("left", "right")],
)
def test_eager_matches_sdpa_inference(name, side):
    torch.manual_seed(0)
    model, arguments = HEADS[name][0](config_of(name)).eval(), inputs(name)
    real = slice(None)
    if side is not None:
        sequences = [arguments["input_ids"][0], arguments["input_ids"][1, :7]]
        arguments = padded(name, sequences, side)[0]
        real = arguments["attention_mask"].bool()
    found = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        found[implementation] = logits(model, arguments)[real]
    ours = logits(lln.hf.apply(model, "softmax"), arguments)[real]
    close(ours, found["eager"], rtol=0, atol=1e-5)
    close(ours, found["sdpa"], rtol=0, atol=1e-5)


@every
def test_can_set_attention_dynamically(name, core):
    torch.manual_seed(0)
    plain = logits(HEADS[name][0](config_of(name)).eval(), arguments := inputs(name))
    model = headed(name, core)
    ours = logits(model, arguments)
    assert (ours - plain).abs().max() > 1e-3
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        close(logits(model, arguments), plain, rtol=0, atol=1e-5)
    model.set_attn_implementation("lln")
    assert torch.equal(logits(model, arguments), ours)


@some
def test_config_attn_implementation_setter(name, core):
    model = headed(name, core)
    assert model.config._attn_implementation == "lln"
    assert all(part.config is model.config for part in model.modules() if hasattr(part, "config"))
    with pytest.raises(ValueError, match="flash_attention_9"):
        model.set_attn_implementation("flash_attention_9")
    assert model.config._attn_implementation == "lln"


@some
def test_forward_signature(name, core):
    model, plain = headed(name, core), HEADS[name][0](config_of(name))
    found = inspect.signature(model.forward)
    assert found == inspect.signature(plain.forward)
    assert next(iter(found.parameters)) == model.main_input_name


@text
def test_custom_4d_attention_mask(name, core):
    pairs = torch.zeros(2, 1, N, N)
    with pytest.raises(NotImplementedError, match=r"give the model a mask \(B, N\)"):
        headed(name, core)(**inputs(name), attention_mask=pairs)
