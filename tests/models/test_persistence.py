"""A model that was saved is the same model in another process, or does not load at all."""

import json
import subprocess
import sys

import pytest
import torch

import lln

hf = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.models  # noqa: E402
from lln.matching import Matching, calibrating  # noqa: E402
from models.encoders import build, config, tokens  # noqa: E402

ELSEWHERE = """
import sys, torch, transformers
import lln.models
torch.set_num_threads(int(sys.argv[1]))  # torch's SDPA rounds by their number
for folder in sys.argv[2:]:
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    ids = torch.load(folder + "/ids.pt", weights_only=True)
    with torch.no_grad():
        logits = model(ids).logits
    print(torch.equal(logits, torch.load(folder + "/logits.pt", weights_only=True)))
"""
FITTED = Matching(target="linear", fit=(0.15, -0.35), statistics="sequence")
CASES = {
    **{name: (name, None) for name in lln.available()},
    "preset": ("lln", {"matching": "paper"}),
    "fitted": ("lln", {"matching": FITTED}),
    "fixed": ("lln", {"matching": 2.5}),
    "frozen": ("lln", {"matching": Matching(statistics="frozen")}),
    "running": ("lln_diag", {"matching": Matching(statistics="running"), "block_size": 4}),
    "shares": ("lln_diag", {"combine": "learnable_ratio"}),
    "drawn": ("performer", {"seed": 3, "features": 20}),
    "grouped": ("softmax", {"kv_heads": 2}),
}


def saved(folder, mixer, options, **more):
    """A model with statistics that only data gives."""
    if options is not None:
        more["mixer_options"] = options
    model = build("EncoderForMaskedLM", mixer, **more)
    if "matching" in (options or {}) and hasattr(
        model.encoder.layers[0].mixer.core.matcher, "stored"
    ):
        with calibrating(model), torch.no_grad():
            model(tokens())
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for case, (mixer, options) in CASES.items():
        folder = tmp_path_factory.mktemp("model")
        model, ids = saved(folder, mixer, options), tokens()
        with torch.no_grad():
            torch.save(model(ids).logits, folder / "logits.pt")
        torch.save(ids, folder / "ids.pt")
        found[case] = folder
    return found


def test_bit_identical_in_a_new_process(folders):
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(torch.get_num_threads()), *folders.values()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert dict(zip(folders, done.stdout.split(), strict=True)) == dict.fromkeys(CASES, "True")


def test_only_safetensors(folders):
    for folder in folders.values():
        assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_leaves_cores_as_they_are(folders, case, dtype):
    exact = lln.models.EncoderForMaskedLM.from_pretrained(folders[case])
    loaded = lln.models.EncoderForMaskedLM.from_pretrained(folders[case], dtype=dtype)
    for name, tensor in exact.state_dict().items():
        other = loaded.state_dict()[name]
        if ".core." in name or not tensor.is_floating_point():
            assert other.dtype == tensor.dtype, name
            assert torch.equal(other, tensor), name
        else:
            assert other.dtype == dtype, name
    out = loaded(tokens()).logits
    assert out.dtype == dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("mixer", ["lln", "skyformer", "gau"])
def test_built_in_half_precision(mixer):
    model = hf.AutoModelForMaskedLM.from_config(config(mixer), dtype=torch.bfloat16)
    expected = lln.models.EncoderForMaskedLM(config(mixer)).state_dict()
    for name, tensor in model.state_dict().items():
        if ".core." in name:
            assert torch.equal(tensor, expected[name]), name
        elif tensor.is_floating_point():
            assert tensor.dtype == torch.bfloat16, name
    assert model(tokens()).logits.dtype == torch.bfloat16


def test_options_survive(folders):
    loaded = hf.AutoConfig.from_pretrained(folders["fitted"])
    assert type(loaded) is lln.models.EncoderConfig
    model = lln.models.EncoderModel(loaded)
    assert model.layers[0].mixer.core.matcher.matching == FITTED
    assert lln.models.EncoderConfig.from_dict(loaded.to_dict()).to_dict() == loaded.to_dict()


def test_running_averages_go_on(folders):
    """transformers fills what is not saved with whatever is in memory."""
    model = lln.models.EncoderModel.from_pretrained(folders["running"])
    for layer in model.layers:
        assert layer.mixer.core.matcher._newest.isnan().all()


def test_another_head_gets_the_same_encoder(folders):
    ids = tokens()
    for case in ("frozen", "hedgehog", "gau"):
        masked = hf.AutoModelForMaskedLM.from_pretrained(folders[case])
        base = hf.AutoModel.from_pretrained(folders[case])
        headed = hf.AutoModelForSequenceClassification.from_pretrained(folders[case], num_labels=3)
        assert type(base) is lln.models.EncoderModel
        assert type(headed) is lln.models.EncoderForSequenceClassification
        with torch.no_grad():
            expected = masked.encoder(ids).last_hidden_state
            assert torch.equal(base(ids).last_hidden_state, expected)
            assert torch.equal(headed.encoder(ids).last_hidden_state, expected)
            assert headed(ids).logits.isfinite().all()


def test_labels_keep_their_names(tmp_path):
    names = {0: "negative", 1: "positive"}
    build("EncoderForSequenceClassification", id2label=names).save_pretrained(tmp_path)
    assert hf.AutoConfig.from_pretrained(tmp_path).id2label == names


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("hedgehog", {"mixer": "softmax"}, "other attention.*weights have encoder.*core.key_bias"),
        ("softmax", {"mixer": "lln"}, "weights lack layers.0.mixer.core"),
        ("lln", {"mixer": "lnn"}, "unknown attention 'lnn'"),
        ("lln", {"mixer_options": {"blok_size": 3}}, "blok_size.*valid"),
    ],
)
def test_weights_and_config_must_belong_together(folders, case, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        hf.AutoModel.from_pretrained(folders[case], **changes)
    assert "\n" not in str(caught.value)


def test_notes_of_a_trainer_in_the_config_are_read(folders, tmp_path):
    file = json.loads((folders["lln"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**file, "use_cache": False}))
    assert hf.AutoConfig.from_pretrained(tmp_path).mixer == "lln"
