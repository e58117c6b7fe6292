import copy

import pytest
import torch
from torch.testing import assert_close

import lln
from instruments.matrices import (
    AVERAGING,
    CORES,
    FACTORED,
    HEADS,
    alone,
    build,
    dense,
    draw,
    padded,
)
from lln.instruments import CoreMatrix, Dense, FactoredMatrix, entropy, matrix_of
from lln.matching import Matching, UncalibratedWarning
from lln.registry import entry

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{UncalibratedWarning.__module__}.{UncalibratedWarning.__qualname__}"
)


def check_products(matrix, p):
    """Rows, product and adjoint against P itself."""
    index = torch.tensor([3, 0, 17])
    x, y = torch.randn(2, *p.shape[:3], 3, dtype=p.dtype)
    assert_close(matrix.rows(index), p[:, :, index])
    own = torch.stack([index, index.flip(0)])
    assert_close(matrix.rows(own), torch.stack([p[i][:, own[i]] for i in range(2)]))
    assert_close(matrix.product(x), p @ x)
    assert_close(matrix.adjoint(y), p.mT @ y)


@pytest.mark.parametrize("name", CORES)
def test_products_are_those_of_the_dense_matrix(name):
    core, (q, k) = build(name), draw()
    p = dense(core, q, k)
    check_products(matrix_of(core, q, k), p)
    check_products(CoreMatrix(core, q, k), p)


@pytest.mark.parametrize("name", [name for name in CORES if entry(name).causal])
def test_causal_products_are_those_of_the_dense_matrix(name):
    core, (q, k) = build(name), draw()
    check_products(matrix_of(core, q, k, causal=True), dense(core, q, k, causal=True))


@pytest.mark.parametrize("name", CORES)
def test_padding_is_outside_the_matrix(name):
    core, (q, k) = build(name), draw(batch=1)
    q_padded, k_padded, keep = padded(q, k)
    matrix = matrix_of(core, q_padded, k_padded, key_mask=keep)
    everything = torch.arange(45)
    p, product = matrix.rows(everything), matrix.product(torch.ones(2, HEADS, 45, 1).double())
    adjoint = matrix.adjoint(torch.ones(2, HEADS, 45, 1).double())
    for i, short in enumerate(alone(q, k)):
        expected = dense(core, *short)
        real = keep[i]
        assert_close(p[i][:, real][..., real], expected[0])
        assert_close(product[i][:, real], expected[0].sum(-1, keepdim=True))
        assert_close(adjoint[i][:, real], expected[0].sum(-2).unsqueeze(-1))
        for x in (p[i].mT, p[i], product[i], adjoint[i]):
            assert not x[:, ~real].any()


@pytest.mark.parametrize("name", [n for n in CORES if "kv_heads" in entry(n).options])
def test_heads_that_share_keys(name):
    core, (q, k) = build(name, kv_heads=2), draw(kv_heads=2)
    check_products(matrix_of(core, q, k), dense(core, q, k))


@pytest.mark.parametrize("name", AVERAGING)
def test_queries_and_keys_of_different_lengths(name):
    core, (q, k) = build(name), draw()
    q = q[:, :, :7]
    try:
        p = dense(core, q, k)
    except NotImplementedError:
        pytest.skip("attends within one sequence")
    matrix = matrix_of(core, q, k)
    assert matrix.shape == (2, HEADS, 7, 40)
    assert_close(matrix.rows(torch.arange(7)), p)


@pytest.mark.parametrize("name", FACTORED)
def test_factors_are_stochastic(name):
    matrix = matrix_of(build(name), *draw())
    assert isinstance(matrix, FactoredMatrix)
    assert_close(matrix.a.sum(-1), torch.ones(2, HEADS, 40).double())
    columns = matrix.b.sum(-2)
    assert_close(columns, (columns > 0).double())


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(name, dtype):
    core, (q, k) = build(name, torch.float32), draw(dtype=dtype)
    matrix, exact = matrix_of(core, q, k), matrix_of(core, q.float(), k.float())
    assert matrix.dtype == torch.float32
    assert_close(matrix.rows(torch.arange(40)), exact.rows(torch.arange(40)))


@pytest.mark.parametrize("name", CORES)
def test_nothing_real_and_nothing_at_all(name):
    core, (q, k) = build(name), draw()
    nothing = torch.zeros(2, 40, dtype=torch.bool)
    matrix = matrix_of(core, q, k, key_mask=nothing)
    x = torch.ones(2, HEADS, 40, 1).double()
    for out in (matrix.rows(torch.arange(40)), matrix.product(x), matrix.adjoint(x)):
        assert not out.any()
    empty = matrix_of(core, q[:, :, :0], k[:, :, :0])
    assert empty.product(x[:, :, :0]).shape == empty.adjoint(x[:, :, :0]).shape


def test_extreme_logits_do_not_overflow():
    q, k = draw(dtype=torch.float32, std=300.0)
    for name in ("softmax", "lln", "performer", "hedgehog"):
        p = matrix_of(build(name, torch.float32), q, k).rows(torch.arange(40))
        assert_close(p.sum(-1), torch.ones(2, HEADS, 40))


def test_measuring_leaves_running_statistics_alone():
    core = build("lln", matching=Matching(statistics="running")).train()
    q, k = draw()
    with torch.no_grad():
        core(q, k, k)
    before = copy.deepcopy(core.state_dict())
    p = matrix_of(core, q, k)
    for name, value in core.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0)
    assert_close(p.rows(torch.arange(40)), dense(core, q, k))


@pytest.mark.parametrize("combine", ["learnable_scale", "learnable_ratio"])
def test_learned_shares_enter_by_their_mean(combine):
    core, (q, k) = build("lln_diag", combine=combine), draw()
    with torch.no_grad():
        core.lln_share.uniform_(0.1, 0.9)
    p = matrix_of(core, q, k).rows(torch.arange(40))
    lln_share, diag_share = (x.mean(-1, keepdim=True) for x in core.shares())
    assert_close(p.sum(-1, keepdim=True), (lln_share + diag_share).expand(2, HEADS, 40, 1))


@pytest.mark.parametrize("name", ["block_diag", "lln", "lln_diag", "softmax"])
@pytest.mark.parametrize("masked", [False, True])
def test_hooks_and_inference_mode(name, masked):
    core, (q, k) = build(name), draw()
    core.register_forward_hook(lambda *_: pytest.fail("a measurement is no call of the model"))
    with torch.inference_mode():
        q, k = 1 * q, 1 * k
        real = torch.arange(40).expand(2, 40) < (30 if masked else 40)
        p = matrix_of(core, q, k, key_mask=real if masked else None).rows(torch.arange(40))
    assert_close(p.sum(-1), real[:, None].expand(2, HEADS, 40).double())


def test_what_has_no_matrix_is_refused():
    q, k = draw()
    with pytest.raises(ValueError, match="transformer_ls is not linear in v"):
        matrix_of(build("transformer_ls"), q, k)
    with pytest.raises(TypeError, match="only a core"):
        matrix_of(lln.build("gau", dim=8, heads=1), q, k)
    with pytest.raises(NotImplementedError, match="linformer has no causal form"):
        matrix_of(build("linformer"), q, k, causal=True)
    with pytest.raises(ValueError, match="P must be floats"):
        entropy(torch.ones(3, 3))
    with pytest.raises(ValueError, match="key_mask"):
        Dense(torch.ones(1, 1, 3, 3), key_mask=torch.ones(1, 4, dtype=torch.bool))
