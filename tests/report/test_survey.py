"""What the survey says, against attention matrices in float64."""

import math

import pytest
import torch
import transformers

from lln.report.subject import load_model, read_images, read_text
from lln.report.survey import _theory, survey


@pytest.fixture(scope="module")
def subject(bert, text):
    return read_text("tiny", bert, load_model(bert), text, max_tokens=70)


@pytest.fixture(scope="module")
def measured(subject):
    return survey(subject)


def matrices(bert, arguments):
    """P in float64, one `(H, N, N)` for each layer."""
    model = transformers.AutoModel.from_pretrained(bert, attn_implementation="eager").double()
    with torch.no_grad():
        out = model.eval()(**arguments, output_attentions=True)
    return [p[0] for p in out.attentions]


def test_a_text_is_cut_into_sequences_of_the_models_length(subject):
    lengths = [sequence["input_ids"].shape for sequence in subject.sequences]
    assert lengths == [(1, 32), (1, 32)]
    for sequence in subject.sequences:
        assert sequence["input_ids"][0, 0] == 2
        assert sequence["input_ids"][0, -1] == 3
        assert sequence["attention_mask"].all()
    assert subject.words[:3] == ["[CLS]", "the", "lobster"]


def test_measures_are_means_over_sequences(bert, subject, measured):
    layers = [matrices(bert, sequence) for sequence in subject.sequences]
    for head in measured.heads:
        p = torch.stack([sequence[head.layer][head.head] for sequence in layers])  # (S, N, N)
        bits = torch.special.entr(p).sum(-1).mean() / math.log(2)
        second = torch.linalg.eigvals(p).abs().sort().values[:, -2]
        assert head.entropy == pytest.approx(bits.item(), abs=1e-5)
        assert head.gap == pytest.approx(1 - second.mean().item(), abs=1e-4)
        assert head.log_mean == pytest.approx(p.log().mean().item(), abs=1e-4)
        variance = p.log().flatten(1).var(1, correction=0).mean()
        assert head.log_variance == pytest.approx(variance.item(), rel=1e-4)
        # Scores are log P up to a number for each row.
        heat = p.log().var(-1, correction=0).mean(-1).rsqrt().mean()
        assert head.temperature == pytest.approx(heat.item(), rel=1e-3)


def test_density_is_one(measured):
    for head in measured.heads:
        assert sum(head.density) * measured.bin_width == pytest.approx(1, abs=1e-4)


def test_weights_are_those_of_the_excerpt(bert, subject, measured):
    layers = matrices(bert, subject.excerpt)
    for head in measured.heads:
        expected = layers[head.layer][head.head]
        torch.testing.assert_close(
            torch.tensor(head.weights, dtype=torch.float64), expected, rtol=0, atol=6e-4
        )
    assert len(measured.words) == len(measured.heads[0].weights)


def test_chosen_layers_keep_their_numbers(subject, measured):
    chosen = survey(subject, layers=[1])
    assert [number for number, _ in chosen.layers] == [1]
    assert [head.entropy for head in chosen.heads] == [
        head.entropy for head in measured.heads if head.layer == 1
    ]


def test_mispredicted_means_off_by_a_quarter(measured):
    for head in measured.heads:
        ratio = head.temperature_paper / head.temperature
        assert head.mispredicted == (ratio > 1.25 or ratio < 0.8)


def test_theory_goes_from_one_token_to_all():
    theory = _theory([1e-4, 1e4], 64)
    assert theory["entropy"][0] == pytest.approx(0, abs=1e-3)
    assert theory["entropy"][-1] == pytest.approx(6, abs=1e-6)
    assert theory["entropy"] == sorted(theory["entropy"])


def test_images(vit, tmp_path):
    from PIL import Image

    for i in range(3):
        Image.new("RGB", (20 + i, 30), (i * 50, 10, 200)).save(tmp_path / f"{i}.png")
    subject = read_images("vit", vit, load_model(vit), tmp_path)
    result = survey(subject)
    assert (result.sequences, result.tokens) == (3, 17)
    assert result.words == [str(i) for i in range(17)]
