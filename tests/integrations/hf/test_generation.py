"""Generation with a recurrent state says what recomputing everything for each token says."""

import copy
import pickle

import pytest
import torch

import lln

pytest.importorskip("transformers", reason="needs the extra `train`")

from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

import lln.hf
from lln.integrations.hf.cache import RecurrentLayer

VOCABULARY, NEW = 50, 12
LAST = VOCABULARY - 1  # ends a text where there has to be an end: prompt lookup asks for one
# Weights of the usual size would leave the logits so small that any attention passed.
SPREAD = 0.3
TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def llama():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=SPREAD,
            **TOKENS,
        )
    )


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            initializer_range=SPREAD,
            **TOKENS,
        )
    )


def qwen2():
    """A window, which keeps softmax, and an attention to everything."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention"],
            initializer_range=SPREAD,
            **TOKENS,
        )
    )


def bart():
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
            init_std=SPREAD,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            **TOKENS,
        )
    )


MODELS = {"llama": llama, "gpt2": gpt2, "qwen2": qwen2, "bart": bart}
RECURRENT = {"lln": {}, "lln_diag": {"block_size": 4}}


def prompts():
    """Three prompts, two of them padded on the left."""
    ids = torch.randint(3, VOCABULARY, (3, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(10) >= torch.tensor([[0], [3], [7]])
    return {"input_ids": ids.where(mask, 0), "attention_mask": mask.long()}


def build(model, name, **options):
    torch.manual_seed(0)
    made = lln.hf.apply(MODELS[model]().eval(), name, **options)
    if name in RECURRENT:
        with lln.matching.calibrating(made), torch.no_grad():
            made(**prompts())
    return made


@pytest.fixture(
    scope="module", params=[(m, n) for m in ("llama", "gpt2") for n in RECURRENT], ids=" ".join
)
def model(request):
    name, mechanism = request.param
    return build(name, mechanism, **RECURRENT[mechanism])


def generate(model, *, inputs=None, do_sample=False, **options):
    torch.manual_seed(2)  # of the samples
    inputs = prompts() if inputs is None else inputs
    options = {"max_new_tokens": NEW, "do_sample": do_sample, **options}
    return model.generate(
        **inputs, **options, output_logits=True, output_scores=True, return_dict_in_generate=True
    )


def assert_same(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(
        torch.stack(found.logits), torch.stack(expected.logits), atol=1e-4, rtol=0
    )


def layers_of(output):
    return output.past_key_values.layers


def test_the_past_matters(model):
    """Or what follows would pass whatever the state holds."""
    inputs = prompts()
    other = {**inputs, "input_ids": inputs["input_ids"].clone()}
    other["input_ids"][0, 0] = 1 + other["input_ids"][0, 0] % (VOCABULARY - 1)
    with torch.no_grad():
        last, changed = (model(**x).logits[0, -1] for x in (inputs, other))
    assert (last - changed).abs().max() > 1e-2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5},
        {"do_sample": True, "top_k": 20, "num_return_sequences": 2},
        {"num_beams": 2, "do_sample": True},
        {"prefill_chunk_size": 4},
    ],
    ids=lambda options: " ".join(options) or "greedy",
)
def test_equals_recomputing(model, options):
    found = generate(model, **options)
    options.pop("prefill_chunk_size", None)  # there is none without a cache
    expected = generate(model, **options, use_cache=False)
    assert_same(found, expected)
    if "num_beams" in options:
        torch.testing.assert_close(
            found.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=0
        )
    assert all(type(layer) is RecurrentLayer for layer in layers_of(found))


def test_equals_the_ordinary_cache(model):
    ordinary = generate(model, cache_implementation="dynamic")
    assert all(type(layer) is DynamicLayer for layer in layers_of(ordinary))
    assert_same(generate(model), ordinary)


def test_padding_changes_nothing(model):
    inputs = prompts()
    together = generate(model, inputs=inputs)
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        alone = generate(model, inputs={"input_ids": inputs["input_ids"][row, mask][None]})
        assert torch.equal(together.sequences[row, -NEW:], alone.sequences[0, -NEW:])
        torch.testing.assert_close(
            torch.stack(together.logits)[:, row], torch.stack(alone.logits)[:, 0], atol=1e-4, rtol=0
        )


def test_goes_on_from_an_earlier_cache(model):
    whole = generate(model)
    half = generate(model, max_new_tokens=NEW // 2)
    seen = half.sequences
    mask = torch.nn.functional.pad(prompts()["attention_mask"], (0, NEW // 2), value=1)
    prompt = copy.deepcopy(half.past_key_values)
    for past in (half.past_key_values, prompt):  # a copy is a past of its own
        rest = generate(
            model,
            inputs={"input_ids": seen, "attention_mask": mask},
            max_new_tokens=NEW - NEW // 2,
            past_key_values=past,
        )
        assert torch.equal(rest.sequences, whole.sequences)
        torch.testing.assert_close(
            torch.stack(rest.logits), torch.stack(whole.logits)[NEW // 2 :], atol=1e-4, rtol=0
        )


def test_a_loop_of_ones_own(model):
    inputs, real = prompts(), prompts()["attention_mask"].bool()
    past = lln.hf.cache(model)
    with torch.no_grad():
        expected = model(**inputs).logits
        steps = [
            model(
                inputs["input_ids"][:, n : n + 1],
                attention_mask=inputs["attention_mask"][:, : n + 1],
                past_key_values=past,
            ).logits
            for n in range(10)
        ]
        assert past.get_seq_length() == 10
        past.reset()
        assert past.get_seq_length() == 0
        again = model(**inputs, past_key_values=past).logits
    for found in (torch.cat(steps, 1), again):
        torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=0)


def test_the_batch_of_a_cache_can_change(model):
    inputs = prompts()
    past = lln.hf.cache(model)
    token = torch.full((3, 1), 7)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1).flip(0)
    ids = torch.cat([inputs["input_ids"], token], 1).flip(0)
    with torch.no_grad():
        model(**inputs, past_key_values=past)
        past.batch_repeat_interleave(2)  # 0, 0, 1, 1, 2, 2
        past.batch_select_indices(torch.tensor([0, 3, 5]))
        past.reorder_cache(torch.tensor([2, 1, 0]))
        found = model(token, attention_mask=mask, past_key_values=past).logits[:, -1]
        expected = model(ids, attention_mask=mask).logits[:, -1]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", RECURRENT)
def test_the_state_does_not_grow(name):
    """From 100 tokens to 10,000, in bytes that memory really holds."""
    core = lln.build_core(name, heads=4, kv_heads=2, head_dim=8)
    draw = torch.Generator().manual_seed(0)
    layer, held = RecurrentLayer(), {}
    with lln.matching.calibrating(core), torch.no_grad():
        core(*(torch.randn(1, h, 16, 8, generator=draw) for h in (4, 2, 2)), causal=True)
    for n in [1] * 100 + [9890] + [1] * 10:
        q, k, v = (torch.randn(2, h, n, 8, generator=draw) for h in (4, 2, 2))
        layer.attend(core, q, *layer.update(k, v), None)
        held[layer.get_seq_length()] = layer.nbytes
    assert held[1] == held[100] == held[10_000]
    # Per sequence and key head: a mean per feature and a weight, and for Diag one block.
    block = 0 if name == "lln" else 2 * core.block_size * 8 * 4 + 8 / 2
    assert held[100] == 2 * 2 * ((8 + 1) * 8 * 4 + block)


def test_other_cores_keep_keys_and_values():
    model = build("llama", "elu")
    found = generate(model)
    assert all(type(layer) is DynamicLayer for layer in layers_of(found))
    assert_same(found, generate(model, use_cache=False))


def test_a_core_that_needs_whole_sequences_says_so():
    model = build("llama", "cosformer")
    with pytest.raises(NotImplementedError, match=r"cosformer.*use_cache=False"):
        generate(model)
    assert generate(model, use_cache=False).sequences.shape == (3, 10 + NEW)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_windows_stay_beside_states(options):
    model = build("qwen2", "lln_diag", block_size=4)
    found = generate(model, **options)
    assert [type(x) for x in layers_of(found)] == [DynamicSlidingWindowLayer, RecurrentLayer]
    assert_same(found, generate(model, **options, use_cache=False))


def test_an_encoder_decoder_generates_with_states():
    model = build("bart", "lln")
    found = generate(model, num_beams=2)
    assert_same(found, generate(model, num_beams=2, use_cache=False))
    cache = found.past_key_values
    assert all(type(layer) is RecurrentLayer for layer in cache.self_attention_cache.layers)
    assert all(type(layer) is DynamicLayer for layer in cache.cross_attention_cache.layers)
    assert_same(generate(model, past_key_values=lln.hf.cache(model)), generate(model))


@pytest.fixture
def one():
    return {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])}


def test_assisted_decoding_uses_the_ordinary_cache(model, one):
    greedy = generate(model, inputs=one, eos_token_id=LAST)
    assisted = generate(model, inputs=one, eos_token_id=LAST, prompt_lookup_num_tokens=3)
    assert torch.equal(assisted.sequences, greedy.sequences)
    assert all(type(layer) is DynamicLayer for layer in layers_of(assisted))


def test_a_state_refuses_to_go_back(model, one):
    past = lln.hf.cache(model)
    with pytest.raises(NotImplementedError, match=r"cannot forget.*cache_implementation='dynamic'"):
        generate(
            model,
            inputs=one,
            eos_token_id=LAST,
            prompt_lookup_num_tokens=3,
            past_key_values=past,
        )
    with pytest.raises(NotImplementedError, match="cannot forget"):
        past.crop(-1)


def test_generates_with_the_attention_that_was_chosen_last():
    model = build("llama", "lln")
    model.set_attn_implementation("sdpa")
    found = generate(model)
    assert all(type(layer) is DynamicLayer for layer in layers_of(found))
    assert_same(found, generate(model, use_cache=False))


def test_a_state_that_is_not_used_is_noticed():
    model = build("llama", "lln")
    past = lln.hf.cache(model)
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="did not use its recurrent state"):
        generate(model, past_key_values=past)


def test_a_state_that_is_used_twice_is_noticed():
    core, layer = lln.build_core("lln", heads=1, head_dim=8), RecurrentLayer()
    with lln.matching.calibrating(core):
        core(*torch.randn(3, 1, 1, 4, 8, generator=torch.Generator().manual_seed(0)))
    keys, values = layer.update(torch.ones(1, 1, 1, 8), torch.ones(1, 1, 1, 8))
    layer.attend(core, keys, keys, values, None)
    with pytest.raises(RuntimeError, match="shares them with another layer"):
        layer.attend(core, keys, keys, values, None)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_generates_with_states(model, copied):
    found = generate(copied(model))
    assert all(type(layer) is RecurrentLayer for layer in layers_of(found))
    assert_same(found, generate(model))


def test_a_model_without_cores_has_no_state():
    assert all(type(layer) is DynamicLayer for layer in lln.hf.cache(llama()).layers)


def test_a_recording_sees_every_token(model):
    """Hooks on the cores would see nothing of a state, so there is none meanwhile."""
    expected = generate(model)
    with lln.instruments.record(model) as recording:
        assert_same(generate(model), expected)
    assert {row["step"] for row in recording.rows} == set(range(NEW))
    past = lln.hf.cache(model)
    with (
        pytest.raises(NotImplementedError, match="inside `record`"),
        lln.instruments.record(model),
    ):
        generate(model, past_key_values=past)


def test_calibration_takes_whole_sequences(model):
    other = copy.deepcopy(model)
    with pytest.raises(ValueError, match="use_cache=False"), lln.matching.calibrating(other):
        generate(other)
