"""What `apply` and its attention cannot honour is refused in one line, and changes nothing."""

import subprocess
import sys

import pytest
import torch

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import SIZES, TEXT, N, build, inputs, run  # noqa: E402


def of(kind, **options):
    """A model whose attention is something else than softmax of scores under a mask."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **TEXT, **options})
    return getattr(transformers, f"{kind}Model")(config)


def t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    return transformers.T5Model(config)


GEMMA = {"num_key_value_heads": 2, "head_dim": 8}
REFUSED = {
    "T5 adds a bias": (t5, "lln", {}, "position_bias"),
    "ALiBi": (lambda: of("Falcon", alibi=True), "lln", {}, "does not fetch its attention"),
    "Gemma 2 caps scores": (lambda: of("Gemma2", **GEMMA), "lln", {}, "softcap"),
    "no interface": (lambda: of("Nystromformer"), "lln", {}, "does not fetch its attention"),
    "no interface either": (lambda: of("DebertaV2"), "lln", {}, "does not fetch its attention"),
    "windows only": (
        lambda: of("Mistral", num_key_value_heads=2, sliding_window=4),
        "lln",
        {},
        "sliding window",
    ),
    "no causal form": (lambda: build("llama"), "nystromformer", {}, "no causal form"),
    "cross-attention": (lambda: build("bart"), "linformer", {}, "cross-attention"),
    "keys ignored": (lambda: build("bert"), "reformer", {}, "ignore the model's keys"),
    "a mixer": (lambda: build("bert"), "gau", {}, "not a core"),
    "unknown core": (lambda: build("bert"), "flash", {}, "unknown attention"),
    "unknown option": (lambda: build("bert"), "lln", {"blocks": 3}, "no option 'blocks'"),
    "the model's scale": (lambda: build("bert"), "lln", {"scale": 1.0}, "comes from the model"),
    "needs a length": (lambda: build("vit"), "linformer", {}, "needs max_len"),
    "bad example": (lambda: build("bert"), "lln", {"example": {"pixels": 1}}, "example"),
}


# DeBERTa scripts functions when it is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_refused_and_unchanged(case):
    make, core, options, message = REFUSED[case]
    model = make().eval()
    keys, ran = set(model.state_dict()), model.config._attn_implementation
    with pytest.raises((ValueError, NotImplementedError), match=message) as caught:
        lln.hf.apply(model, core, **options)
    assert "\n" not in str(caught.value)
    assert set(model.state_dict()) == keys
    assert model.config._attn_implementation == ran
    assert not hasattr(model.config, "lln_attention")


def test_a_failed_second_apply_leaves_the_first():
    model, arguments = build("roberta", "lln"), inputs("roberta")
    expected = run(model, "roberta", arguments)
    with pytest.raises(ValueError, match="example"):
        lln.hf.apply(model, "elu", example={"pixels": 1})
    assert torch.equal(run(model, "roberta", arguments), expected)
    assert model.config.lln_attention["name"] == "lln"


def test_other_things_than_models_are_refused():
    with pytest.raises(TypeError, match="model of transformers"):
        lln.hf.apply(torch.nn.Linear(2, 2), "lln")


def test_masks_over_pairs_are_refused():
    model, arguments = build("roberta", "lln"), inputs("roberta")
    pairs = torch.ones(2, 1, N, N, dtype=torch.bool).tril()
    with pytest.raises(NotImplementedError, match=r"mask \(B, N\)"):
        model(**arguments, attention_mask=pairs)


def test_the_name_alone_is_refused():
    model = build("roberta")
    model.set_attn_implementation("lln")
    with pytest.raises(ValueError, match=r"call lln\.hf\.apply"):
        run(model, "roberta", inputs("roberta"))


def test_apply_leaves_modes_and_random_numbers_alone():
    model = build("llama").train()
    model.layers[0].eval()
    modes = {path: module.training for path, module in model.named_modules()}
    state = torch.get_rng_state()
    lln.hf.apply(model, "lln")  # warns of nothing, though it is not calibrated yet
    assert torch.equal(torch.get_rng_state(), state)
    assert modes.items() <= {path: m.training for path, m in model.named_modules()}.items()
    with pytest.warns(lln.matching.UncalibratedWarning):
        run(model.eval(), "llama", inputs("llama"))


def test_without_transformers_the_extra_is_named():
    script = "import sys; sys.modules['transformers'] = None; import lln.hf"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip().endswith("lln.hf needs transformers: pip install 'lln[train]'")
