"""`record` on models of transformers: every implementation, masks, and what it refuses."""

import math

import pytest
import torch

import lln
from lln.instruments import entropy, matrix_of, record, spectral_gap
from lln.instruments.interface import read

transformers = pytest.importorskip("transformers", reason="needs transformers")

from transformers import masking_utils, modeling_utils  # noqa: E402

N, HEADS = 12, 4
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": HEADS}
TEXT = {**SIZES, "intermediate_size": 48, "vocab_size": 50, "initializer_range": 0.3}


def build(name, implementation="sdpa", **options):
    classes = {
        "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
        "bert": (transformers.BertConfig, transformers.BertModel),
        "llama": (transformers.LlamaConfig, transformers.LlamaModel),
        "gpt2": (transformers.GPT2Config, transformers.GPT2Model),
        "modernbert": (transformers.ModernBertConfig, transformers.ModernBertModel),
        "nystromformer": (transformers.NystromformerConfig, transformers.NystromformerModel),
    }
    config, model = classes[name]
    config = config(**TEXT, pad_token_id=0, **options)
    return model._from_config(config, attn_implementation=implementation).eval()


@pytest.fixture
def batch():
    """Three sequences, padded on the right, on the left, and not."""
    ids = torch.randint(3, 50, (3, N))
    keep = torch.ones(3, N, dtype=torch.long)
    keep[0, 8:], keep[1, :5] = 0, 0
    return {"input_ids": ids, "attention_mask": keep}


def true_weights(model, layer, **inputs):
    """P `(B, H, N, N)` as the eager form of the model returns it."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True).attentions[layer].double()


def check(rows, p, keep):
    """Entropy and gap by head: means over sequences, each cut out of its batch."""
    parts = [p[i : i + 1][:, :, row][..., row] for i, row in enumerate(keep.bool())]
    for measure, tolerance, of in (
        ("entropy", 1e-4, lambda part: entropy(part).bits),
        # Triangular matrices are far from normal, and their eigenvalues sensitive to rounding.
        ("gap", 1e-3, lambda part: spectral_gap(part).gap),
    ):
        expected = torch.cat([of(part) for part in parts]).mean(0)
        found = torch.tensor([row[measure] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("name", "options", "causal"),
    [
        ("roberta", {}, False),
        ("bert", {}, False),
        ("bert", {"is_decoder": True}, True),
        ("llama", {"num_key_value_heads": 2}, True),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, True),
    ],
)
def test_measured_is_what_the_model_computes(name, options, causal, implementation, batch):
    model = build(name, implementation, **options)
    for inputs in (batch, {"input_ids": batch["input_ids"]}):
        with record(model, keep=True) as recording, torch.no_grad():
            out = model(**inputs).last_hidden_state
        with torch.no_grad():
            assert torch.equal(model(**inputs).last_hidden_state, out)
        assert len(recording.rows) == 2 * HEADS
        keep = inputs.get("attention_mask", torch.ones(3, N))
        p = true_weights(model, 1, **inputs)
        model.set_attn_implementation(implementation)
        check(recording.rows[HEADS:], p, keep)
        capture = recording.captures[1]
        assert capture.causal is causal
        assert capture.core.scale == pytest.approx(
            recording.captures[0].core.scale
            / (2 if "scale_attn_by_inverse_layer_idx" in options else 1)
        )
    assert recording.rows[0]["name"] in dict(model.named_modules())
    assert modeling_utils.AttentionInterface.get_interface.__module__ == modeling_utils.__name__


@pytest.mark.parametrize("n_q", [1, 5, 9])
@pytest.mark.parametrize("is_causal", [None, False, True])
def test_unmasked_sdpa_is_read_as_it_computes(n_q, is_causal):
    """Causal unless the module denies it, and then without the empty part of a static cache."""
    module = torch.nn.Module()
    if is_causal is not None:
        module.is_causal = is_causal
    q, k = torch.randn(1, 4, n_q, 8), torch.randn(1, 4, 9, 8)
    attend = modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
    p, _ = attend(module, q, k, torch.eye(9).expand(1, 4, -1, -1), None, scaling=0.7)
    call = read("sdpa", module, q, k, None, {"scaling": 0.7})
    found = matrix_of(call.core, call.q, call.k, causal=call.causal).rows(torch.arange(n_q))
    found = torch.nn.functional.pad(found, (0, 9 - found.shape[3]))
    torch.testing.assert_close(found, p.transpose(1, 2))


def test_images():
    config = transformers.ViTConfig(**SIZES, intermediate_size=48, image_size=16, patch_size=8)
    model = transformers.ViTModel._from_config(config, attn_implementation="sdpa").eval()
    images = torch.randn(2, 3, 16, 16)
    with record(model) as recording, torch.no_grad():
        model(images)
    check(recording.rows[:HEADS], true_weights(model, 0, pixel_values=images), torch.ones(2, 5))
    assert recording.rows[0]["n"] == 5


def test_training_is_undisturbed(batch):
    model = build("roberta").train()
    model.gradient_checkpointing_enable()

    def run():
        torch.manual_seed(1)
        model.zero_grad()
        model(**batch).last_hidden_state.square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = run()
    with record(model) as recording:
        inside = run()
    assert len(recording.rows) == 2 * HEADS
    for one, two, three in zip(before, inside, run(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_the_interface_comes_back_after_an_error(batch):
    fetch = modeling_utils.AttentionInterface.get_interface
    model = build("roberta")
    model.encoder.layer[1].attention.self.key.weight.data.fill_(math.nan)
    with (
        pytest.raises(ValueError, match=r"layer 1 \(encoder.layer.1.attention.self\) are not fin"),
        record(model),
    ):
        model(**batch)
    assert modeling_utils.AttentionInterface.get_interface is fetch


def test_other_models_are_not_recorded(batch):
    mine, other = build("roberta"), build("roberta")
    with record(mine, layers=[0]) as recording, torch.no_grad():
        mine(**batch)
        other(**batch)
    assert len(recording.rows) == HEADS


def test_a_core_inside_a_layer_is_seen_once(batch, monkeypatch):
    """As when a bridge attaches cores to the layers of a model."""

    def attend(module, query, key, value, attention_mask, **options):
        out = module.attention_core(query, key, value, key_mask=attention_mask)
        return out.transpose(1, 2).contiguous(), None

    functions, masks = (
        modeling_utils.ALL_ATTENTION_FUNCTIONS,
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS,
    )
    monkeypatch.setitem(functions, "ours", attend)
    monkeypatch.setitem(masks, "ours", masking_utils.flash_attention_mask)
    model = build("roberta", "ours")
    for layer in model.encoder.layer:
        layer.attention.self.attention_core = lln.build_core("lln", heads=HEADS, head_dim=8)
    with record(model) as recording, torch.no_grad():
        model(**batch)
    assert len(recording.rows) == 2 * HEADS
    assert all("alpha" in row for row in recording.rows)
    assert recording.rows[0]["name"] == "encoder.layer.0.attention.self.attention_core"


def test_an_unknown_implementation_is_refused(batch, monkeypatch):
    functions = modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(functions, "theirs", functions["sdpa"])
    model = build("roberta", "theirs")
    with pytest.raises(ValueError, match="'theirs' is not known to be softmax"), record(model):
        model(**batch)


def test_generation_steps(batch):
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2, eos_token_id=1)
    model = transformers.LlamaForCausalLM(config).eval()
    with record(model) as recording:
        model.generate(
            batch["input_ids"], max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0
        )
    assert {(row["step"], row["n"]) for row in recording.rows} == {(0, N), (1, N + 1), (2, N + 2)}
    assert all((row["gap"] is None) == (row["step"] > 0) for row in recording.rows)


def test_windows_are_left_out(batch):
    model = build("modernbert", global_attn_every_n_layers=2, local_attention=4)
    match = r"not measured: layers\.1\.attn: its mask is neither padding nor causal"
    with pytest.warns(UserWarning, match=match), record(model) as recording, torch.no_grad():
        model(**batch)
    assert {row["layer"] for row in recording.rows} == {0}
    assert list(recording.skipped) == ["layers.1.attn"]


def test_models_that_cannot_be_hooked():
    model = build("nystromformer", "eager", num_landmarks=4, segment_means_seq_len=16)
    ids = torch.randint(3, 50, (1, 16))
    with (
        pytest.raises(ValueError, match="NystromformerModel has no attention core of lln, and"),
        record(model),
    ):
        model(ids)


def test_a_bias_is_refused(batch):
    model = build("roberta")
    bias = torch.randn(3, 1, N, N)
    with pytest.raises(ValueError, match="adds a bias to the scores"), record(model):
        model(input_ids=batch["input_ids"], attention_mask=bias)
