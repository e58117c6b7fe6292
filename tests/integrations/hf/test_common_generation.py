"""transformers' generic checks of `generate`, with our attention and its states.

Checks of its `GenerationTesterMixin` that apply to Llama and to RoBERTa as a decoder, each with a
test of the same name. "Equal" means to generating without any cache.

- test_greedy_generate: equal
- test_sample_generate: equal for the same seed
- test_beam_search_generate: equal
- test_beam_sample_generate: equal for the same seed
- test_greedy_generate_dict_outputs: scores, states and weights of each token, by an ordinary cache
- test_generate_without_input_ids: from the first token alone
- test_generate_from_inputs_embeds: embeddings in place of the prompt
- test_generate_continue_from_past_key_values: in two parts
- test_generate_continue_from_inputs_embeds: in two parts, the first from embeddings
- test_generate_with_static_cache: equal
- test_generate_from_inputs_embeds_with_static_cache: equal
- test_generate_with_and_without_position_ids: given positions are those found
- test_left_padding_compatibility: padded on the left or not
- test_past_key_values_format: a state for each layer that has one, else keys and values
- test_assisted_decoding_matches_greedy_search: with an ordinary cache, and refused with states
- test_assisted_decoding_sample: runs
- test_prompt_lookup_decoding_matches_greedy_search: with an ordinary cache
- test_prompt_lookup_decoding_stops_at_eos: ends where greedy search ends
- test_generate_methods_with_logits_to_keep: all logits or the last
- test_prepare_inputs_for_generation_kwargs_forwards: extra arguments reach the model
- test_eager_matches_sdpa_generate: our softmax generates what eager and SDPA generate
- test_sdpa_padding_matches_padding_free_with_position_ids: packed is padded
- test_recurrent_layers_mask_padding_on_continued_forward: padding does not enter a state

Compiling (generate_compile_model_forward_fullgraph) is in `test_compile.py`. Not applicable:
*_fa2_*, *_flash_attention_* (of other implementations), generate_with_quant_cache and
generate_with_mtp (of other packages and models), generate_compilation_all_outputs and
static_cache_no_recompile_with_smaller_length (compiled static caches), model_parallel_beam_search
(several devices), custom_4d_attention_mask (in `test_common_modeling.py`).
"""

import pytest
import torch
from torch.nn.functional import pad

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.heads import CORES, assert_covered, config_of, headed, prompts  # noqa: E402
from integrations.hf.models import VOCABULARY, N, inputs  # noqa: E402
from lln.integrations.hf.cache import RecurrentLayer  # noqa: E402

NEW = 6
HEADS = {
    "llama": (transformers.LlamaForCausalLM, {}),
    "roberta": (transformers.RobertaForCausalLM, {"is_decoder": True, "eos_token_id": None}),
}
close = torch.testing.assert_close


def test_the_list_is_covered():
    assert_covered(globals())


@pytest.fixture(
    scope="module", params=[(name, core) for name in HEADS for core in CORES], ids=" ".join
)
def model(request):
    name, core = request.param
    head, options = HEADS[name]
    return headed(name, core, head, **options)


@pytest.fixture(scope="module", params=CORES)
def llama(request):
    return headed("llama", request.param)


def generate(model, given=None, *, do_sample=False, **options):
    torch.manual_seed(2)  # of the samples
    given = prompts() if given is None else given
    options = {"max_new_tokens": NEW, "do_sample": do_sample, **options}
    return model.generate(**given, **options, output_logits=True, return_dict_in_generate=True)


def assert_same(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    close(torch.stack(found.logits), torch.stack(expected.logits), rtol=0, atol=1e-4)


def assert_equal_without_cache(model, **options):
    assert_same(generate(model, **options), generate(model, **options, use_cache=False))


def test_greedy_generate(model):
    assert_equal_without_cache(model)


def test_sample_generate(model):
    assert_equal_without_cache(model, do_sample=True, top_k=20, num_return_sequences=2)


def test_beam_search_generate(model):
    assert_equal_without_cache(model, num_beams=3, num_return_sequences=2)


def test_beam_sample_generate(model):
    assert_equal_without_cache(model, do_sample=True, num_beams=2)


def test_greedy_generate_dict_outputs(model):
    wanted = {"output_scores": True, "output_hidden_states": True, "output_attentions": True}
    found = generate(model, cache_implementation="dynamic", **wanted)
    assert len(found.scores) == len(found.hidden_states) == len(found.attentions) == NEW
    for step, layers in enumerate(found.attentions):
        n = 10 if step == 0 else 1
        assert [tuple(x.shape) for x in layers] == [(3, 4, n, 10 + step)] * 2
        if step:
            close(layers[0].sum(-1), torch.ones(3, 4, 1))
    assert_same(found, generate(model))
    if type(generate(model).past_key_values.layers[0]) is RecurrentLayer:
        with pytest.raises(NotImplementedError, match="cache_implementation='dynamic'"):
            generate(model, **wanted)


def test_generate_without_input_ids(model):
    found = generate(model, {}, bos_token_id=5, max_new_tokens=NEW)
    assert_same(found, generate(model, {"input_ids": torch.tensor([[5]])}, use_cache=False))


def embedded(model, ids):
    return {"inputs_embeds": model.get_input_embeddings()(ids)}


@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_generate_from_inputs_embeds(llama, beams):
    ids = inputs("llama")["input_ids"]
    expected = generate(llama, {"input_ids": ids}, num_beams=beams)
    found = generate(llama, embedded(llama, ids), num_beams=beams)
    assert torch.equal(found.sequences, expected.sequences[:, N:])


def test_generate_continue_from_past_key_values(llama):
    given = prompts()
    whole = generate(llama, given)
    half = generate(llama, given, max_new_tokens=NEW // 2)
    given = {
        "input_ids": half.sequences,
        "attention_mask": pad(given["attention_mask"], (0, NEW // 2), value=1),
        "past_key_values": half.past_key_values,
    }
    rest = generate(llama, given, max_new_tokens=NEW - NEW // 2)
    assert torch.equal(rest.sequences, whole.sequences)
    close(torch.stack(rest.logits), torch.stack(whole.logits)[NEW // 2 :], rtol=0, atol=1e-4)


@torch.no_grad()
def test_generate_continue_from_inputs_embeds(llama):
    start = embedded(llama, inputs("llama")["input_ids"])
    whole = generate(llama, start).sequences
    half = generate(llama, start, max_new_tokens=NEW // 2)
    new = half.sequences
    more = torch.cat([start["inputs_embeds"], embedded(llama, new)["inputs_embeds"]], 1)
    given = {"inputs_embeds": more, "past_key_values": half.past_key_values}
    rest = generate(llama, given, max_new_tokens=NEW - NEW // 2).sequences
    assert torch.equal(torch.cat([new, rest], 1), whole)


def test_generate_with_static_cache(llama):
    found = generate(llama, cache_implementation="static")
    assert isinstance(found.past_key_values, transformers.StaticCache)
    assert_same(found, generate(llama, use_cache=False))


@torch.no_grad()
def test_generate_from_inputs_embeds_with_static_cache(llama):
    given = embedded(llama, inputs("llama")["input_ids"])
    found = generate(llama, given, cache_implementation="static")
    assert_same(found, generate(llama, given, use_cache=False))


def test_generate_with_and_without_position_ids(llama):
    given = prompts()
    positions = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    assert_same(generate(llama, {**given, "position_ids": positions}), generate(llama, given))


@torch.no_grad()
def test_left_padding_compatibility(model):
    ids = torch.randint(3, VOCABULARY, (2, 8))
    mask = torch.ones_like(ids)
    longer = {"input_ids": pad(ids, (3, 0), value=1), "attention_mask": pad(mask, (3, 0))}
    if "Llama" in type(model).__name__:  # RoBERTa's positions skip its padding tokens
        longer["position_ids"] = pad(torch.arange(8), (3, 0))[None].expand(2, -1)
    expected = model(ids, attention_mask=mask, use_cache=False).logits
    found = model(**longer, use_cache=False).logits
    close(found[:, -1], expected[:, -1], rtol=0, atol=1e-5)


def test_past_key_values_format(llama):
    recurrent = hasattr(llama.model.layers[0].self_attn.attention_core, "recurrent")
    past = generate(llama).past_key_values
    assert len(past) == 2
    assert past.get_seq_length() == 10 + NEW - 1
    for layer in past.layers:
        assert (type(layer) is RecurrentLayer) == recurrent
        if not recurrent:
            assert layer.keys.shape == layer.values.shape == (3, 2, 10 + NEW - 1, 8)


@pytest.fixture
def one():
    return {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])}


END = {"eos_token_id": VOCABULARY - 1}


def test_assisted_decoding_matches_greedy_search(llama, one):
    assistant = headed("llama", "lln", attention_bias=True)
    expected = generate(llama, one, **END)
    for helper in (assistant, llama):
        assert_same(generate(llama, one, assistant_model=helper, **END), expected)
    if hasattr(llama.model.layers[0].self_attn.attention_core, "recurrent"):
        past = lln.hf.cache(llama)
        with pytest.raises(NotImplementedError, match="cannot forget"):
            generate(llama, one, assistant_model=assistant, past_key_values=past, **END)


def test_assisted_decoding_sample(llama, one):
    assistant = headed("llama", "lln", attention_bias=True)
    found = generate(llama, one, assistant_model=assistant, do_sample=True, **END)
    assert found.sequences.shape[1] > 8


def test_prompt_lookup_decoding_matches_greedy_search(llama, one):
    found = generate(llama, one, prompt_lookup_num_tokens=3, **END)
    assert_same(found, generate(llama, one, **END))


def test_prompt_lookup_decoding_stops_at_eos(llama, one):
    second = generate(llama, one).sequences[0, 9].item()
    expected = generate(llama, one, eos_token_id=second).sequences
    assert expected.shape[1] <= 10
    found = generate(llama, one, eos_token_id=second, prompt_lookup_num_tokens=3)
    assert torch.equal(found.sequences, expected)


@torch.no_grad()
def test_generate_methods_with_logits_to_keep(llama):
    given = inputs("llama")
    assert_same(generate(llama, given, logits_to_keep=0), generate(llama, given))
    every, last = llama(**given).logits, llama(**given, logits_to_keep=1).logits
    close(last, every[:, -1:], rtol=0, atol=1e-5)


def test_prepare_inputs_for_generation_kwargs_forwards(llama):
    given = llama.prepare_inputs_for_generation(torch.ones(1, 3, dtype=torch.long), extra=7)
    assert given["extra"] == 7


@pytest.mark.parametrize("beams", [1, 3])
def test_eager_matches_sdpa_generate(beams):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config_of("llama")).eval()
    found = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        found.append(generate(model, num_beams=beams))
    ours = generate(lln.hf.apply(model, "softmax"), num_beams=beams)
    for other in found:
        assert_same(ours, other)


@torch.no_grad()
def test_sdpa_padding_matches_padding_free_with_position_ids(llama):
    given = prompts()
    real = given["attention_mask"].bool()
    positions = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    expected = llama(**given, position_ids=positions, use_cache=False).logits[real]
    packed = {"input_ids": given["input_ids"][real][None], "position_ids": positions[real][None]}
    close(llama(**packed, use_cache=False).logits[0], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_recurrent_layers_mask_padding_on_continued_forward(llama):
    past, ids = lln.hf.cache(llama), inputs("llama")["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = llama(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    for part in (slice(0, 5), slice(5, 9), slice(9, N)):  # the padding is within the first
        found = llama(
            ids[:, part],
            attention_mask=mask[:, : part.stop],
            position_ids=positions[:, part],
            past_key_values=past,
        ).logits
        real = mask[:, part].bool()
        close(found[real], expected[:, part][real], rtol=0, atol=1e-4)
