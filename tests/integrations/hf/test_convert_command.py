"""The command `lln convert`, and what it refuses."""

import json

import pytest
import torch
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")
pytest.importorskip("datasets", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import MODELS  # noqa: E402
from lln.cli.app import app  # noqa: E402
from lln.data import load_tokenizer  # noqa: E402

SMALL = ("--length", 32, "--batch", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "roberta"
    cls, config = MODELS["roberta"]
    config = transformers.RobertaConfig.from_dict({**config().to_dict(), "vocab_size": 261})
    cls(config).save_pretrained(path)
    load_tokenizer("bytes").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "sums.txt"
    path.write_text("\n".join(f"{i} and {i % 7} make {i + i % 7}" for i in range(400)))
    return path


def run(*args):
    return CliRunner().invoke(app, ["convert", *map(str, args)])


def test_one_attention(folder, text, tmp_path):
    out = tmp_path / "out"
    args = (folder, "--text", text, "--out", out, "--steps", 2, "--finetune", 1, *SMALL)
    result = run(*args)
    assert result.exit_code == 0, result.output
    for stage in ("swap", "calibration", "distillation", "fine-tuning"):
        assert stage in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    found = json.loads((out / "conversion.json").read_text())
    assert found["made"]["text"] == str(text)
    assert found["plan"]["attention"] == "lln_diag"
    assert lln.hf.load(out).config.lln_attention["name"] == "lln_diag"
    assert "is there already" in run(*args).stdout
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text.read_bytes())
    for changed in (("--seed", 1), ("--text", copy)):
        other = run(*args, *changed)
        assert other.exit_code == 2
        assert "exists already: name a folder that does not" in other.stderr


def test_several(folder, text, tmp_path):
    out = tmp_path / "out"
    attn = "elu,lln+matching=frozen"
    result = run(folder, "--text", text, "--out", out, "--attn", attn, "--steps", 1, *SMALL)
    assert result.exit_code == 0, result.output
    table = (out / "comparison.md").read_text()
    assert table in result.stdout
    assert table.splitlines()[0] == "| attention | swap | distillation | calibration | minutes |"
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| elu", "| lln+matching=frozen"]
    assert rows[0][3] == "–"
    for label in attn.split(","):
        assert lln.hf.load(out / label)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--attn", "nothing"), "unknown attention 'nothing'; available: "),
        (("--attn", "lln+size=3"), "'lln' has no option 'size'; valid: "),
        (("--attn", "lln_diag+combine=best"), "combine must be one of average"),
        (("--attn", "tnn"), "is a mixer, not a core"),
        (("--text", "nowhere.txt"), "nowhere.txt does not exist"),
        (("--text", "sst2", "--length", 32), "LLN_DATA"),
        (("--device", "abacus"), "'abacus' is not one of cpu"),
    ],
)
def test_refusals(folder, text, tmp_path, monkeypatch, args, message):
    monkeypatch.delenv("LLN_DATA", raising=False)
    result = run(folder, "--text", text, "--out", tmp_path / "out", *SMALL, *args)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_models_that_are_refused(text, tmp_path):
    images = tmp_path / "vit"
    cls, config = MODELS["vit"]
    cls(config()).save_pretrained(images)
    for model, message in ((images, "reads pixel_values"), (tmp_path / "x", "there is no folder")):
        result = run(model, "--text", text, "--out", tmp_path / "out")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["vit"]
