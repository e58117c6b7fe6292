"""A model that was saved is the same model in another process, or does not load at all."""

import subprocess
import sys

import pytest
import torch

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import MODELS, SIZES, build, inputs, run  # noqa: E402
from lln.matching import Matching  # noqa: E402

ELSEWHERE = """
import sys, torch, transformers
{imports}
for case in sys.argv[1:]:
    inputs = torch.load(case + "/inputs.pt", weights_only=True)
    for load in ({loaders}):
        with torch.no_grad():
            out = load(case)(**inputs).last_hidden_state
        print(torch.equal(out, torch.load(case + "/expected.pt", weights_only=True)))
"""
CASES = {
    "no parameters": ("roberta", "softmax", {}),
    "of each sequence": ("roberta", "lln", {"matching": Matching(statistics="sequence")}),
    "frozen": ("llama", "lln_diag", {"block_size": 4}),
    "frozen and cross": ("bart", "lln", {}),
    "learned": ("roberta", "hedgehog", {}),
    "learned shares": ("vit", "lln_diag", {"combine": "learnable_ratio"}),
    "drawn": ("distilbert", "performer", {}),
    "length of the model": ("bert", "linformer", {"rank": 4}),
}


def elsewhere(imports, loaders, *cases):
    script = ELSEWHERE.format(imports=imports, loaders=loaders)
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, cases)], capture_output=True, text=True
    )


def disturbed(model):
    """Parameters that no initialisation gives."""
    for part in model.modules():
        if isinstance(part, lln.Attention):
            for weight in part.parameters():
                torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    torch.manual_seed(0)
    found = {}
    for case, (name, core, options) in CASES.items():
        folder = tmp_path_factory.mktemp("model")
        model, arguments = disturbed(build(name, core, **options)), inputs(name)
        model.save_pretrained(folder)
        with torch.no_grad():
            torch.save(model(**arguments).last_hidden_state, folder / "expected.pt")
        torch.save(arguments, folder / "inputs.pt")
        found[case] = folder
    return found


def test_bit_identical_in_a_new_process(folders):
    loaders = "lln.hf.load, transformers.AutoModel.from_pretrained"
    done = elsewhere("import lln.hf", loaders, *folders.values())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 2 * len(CASES)


def test_without_lln_nothing_loads(folders):
    """transformers alone would run softmax attention on these weights."""
    for case in ("no parameters", "frozen"):
        done = elsewhere("", "transformers.AutoModel.from_pretrained,", folders[case])
        assert done.returncode != 0
        assert "ValueError" in done.stderr
        assert 'attn_implementation="lln"' in done.stderr


def test_only_safetensors(folders):
    for folder in folders.values():
        assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name, tmp_path):
    model, arguments = build(name, "lln"), inputs(name)
    model.save_pretrained(tmp_path)
    loaded = lln.hf.load(tmp_path)
    assert type(loaded) is type(model)
    with torch.no_grad():
        assert torch.equal(run(loaded, name, arguments), run(model, name, arguments))


def test_another_head_gets_the_same_attention(tmp_path):
    disturbed(build("roberta", "hedgehog")).save_pretrained(tmp_path)
    base = lln.hf.load(tmp_path)
    headed = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    arguments = inputs("roberta")
    with torch.no_grad():
        expected = run(base, "roberta", arguments)
        assert torch.equal(run(headed.roberta, "roberta", arguments), expected)


def test_half_precision_keeps_cores_in_float32(tmp_path):
    disturbed(build("roberta", "hedgehog")).save_pretrained(tmp_path)
    loaded = lln.hf.load(tmp_path, dtype=torch.bfloat16)
    for path, weight in loaded.named_parameters():
        expected = torch.float32 if "attention_core" in path else torch.bfloat16
        assert weight.dtype == expected, path
    assert run(loaded, "roberta", inputs("roberta")).dtype == torch.bfloat16


def test_half_precision_keeps_integers(tmp_path):
    model = build("roberta", "skyformer")
    model.save_pretrained(tmp_path)
    loaded = lln.hf.load(tmp_path, dtype=torch.bfloat16)
    draws = [part.encoder.layer[0].attention.self.attention_core.draws for part in (model, loaded)]
    assert draws[1].dtype == torch.int64
    assert torch.equal(*draws)
    assert run(loaded, "roberta", inputs("roberta")).isfinite().all()


def test_a_config_alone_builds_the_attention():
    model = build("roberta", "lln_diag", block_size=4)
    again = type(model)(type(model.config).from_dict(model.config.to_dict()))
    assert again.encoder.layer[1].attention.self.attention_core.block_size == 4


def test_weights_and_config_must_belong_together(tmp_path):
    plain = build("roberta")
    plain.save_pretrained(tmp_path / "plain")
    model = build("roberta", "lln")
    model.save_pretrained(tmp_path / "lln")
    with pytest.raises(ValueError, match="the weights lack"):
        type(model).from_pretrained(tmp_path / "plain", config=model.config)
    with pytest.raises(ValueError, match="the weights have"):
        type(model).from_pretrained(tmp_path / "lln", config=plain.config)


def test_a_config_that_lost_its_implementation_is_noticed(tmp_path):
    """transformers forgets it when a config alone is loaded and saved."""
    model, arguments = build("roberta", "lln"), inputs("roberta")
    model.save_pretrained(tmp_path)
    transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="saved with lln attention and runs 'sdpa'"):
        transformers.AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        found = run(lln.hf.load(tmp_path), "roberta", arguments)
        assert torch.equal(found, run(model, "roberta", arguments))


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def rewrite(old, new):
    def change(folder):
        file = folder / "config.json"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "."),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "."),
        (rewrite('"lln_diag"', '"lnn_diag"'), "unknown attention 'lnn_diag'"),
        (rewrite('"block_size"', '"blocksize"'), "no option 'blocksize'"),
        (rewrite('"version": 1', '"version": 2'), "version"),
        (rewrite('"RobertaModel"', '"RobertoModel"'), "has no RobertoModel"),
        (rewrite('"lln_attention"', '"other"'), r"lln\.hf\.apply"),
    ],
)
def test_damage_is_told_in_one_line(damage, message, tmp_path):
    build("roberta", "lln_diag", block_size=4).save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        lln.hf.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "cannot load" in str(caught.value)


def test_options_that_cannot_be_saved_are_refused():
    model = build("roberta")
    with pytest.raises(ValueError, match="block_size"):
        lln.hf.apply(model, "lln_diag", block_size=torch.tensor(4))
    assert not hasattr(model.config, "lln_attention")


def test_parts_with_configs_of_their_own(tmp_path):
    text = {**SIZES, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**SIZES, "image_size": 16, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    example = {**inputs("bert"), **inputs("vit")}
    model = transformers.CLIPModel(config).eval()
    with pytest.raises(ValueError, match="example"):
        lln.hf.apply(model, "hedgehog")
    lln.hf.apply(model, "hedgehog", example=example)
    model.save_pretrained(tmp_path)
    model.text_model.save_pretrained(tmp_path / "text")
    again = lln.hf.load(tmp_path)
    again.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        expected = model(**example)
        for loaded in (again, lln.hf.load(tmp_path / "again")):
            assert torch.equal(loaded(**example).logits_per_text, expected.logits_per_text)
        part = lln.hf.load(tmp_path / "text")(example["input_ids"])
    assert torch.equal(part.last_hidden_state, expected.text_model_output.last_hidden_state)
