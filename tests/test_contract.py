"""What holds for every registered attention, whatever its mechanism.

A mechanism that cannot meet a clause is in the ledger, with the reason. Clauses that benchmarks
check too, before they time anything, are functions of `lln.bench.contract`.
"""

from itertools import pairwise

import oracles
import pytest
import torch
from torch.testing import assert_close

import lln
from lln.bench import contract
from lln.bench.contract import DIM, HEADS, LONGEST, MASKS
from lln.matching import UncalibratedWarning
from lln.registry import entry

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{UncalibratedWarning.__module__}.{UncalibratedWarning.__qualname__}"
)

VALUE_DIM = 8

# Forms of a mechanism that its defaults do not show.
VARIANTS: dict[str, dict] = {
    "longformer+global": {"global_tokens": 3},
    "nystromformer+conv": {"conv": 3},
    "transnormer_t1+diag": {"layer": 0, "layers": 2},
    "transnormer_t2+diag": {"layer": 0, "layers": 2},
}

ORDERED = {
    "block_diag": "blocks are neighbourhoods",
    "cosformer": "weights fall with distance",
    "gau": "chunks are neighbourhoods, and positions enter",
    "linformer": "each position has its column of the projections",
    "lln_diag": "blocks are neighbourhoods",
    "longformer": "windows are neighbourhoods",
    "longformer+global": "windows are neighbourhoods",
    "nystromformer": "landmarks are means of neighbours",
    "nystromformer+conv": "landmarks are means of neighbours",
    "reformer": "buckets are cut into chunks of neighbours",
    "skyformer": "landmarks are drawn by position",
    "tnn": "weights depend on distances alone",
    "transformer_ls": "windows are neighbourhoods",
    "transnormer_t1+diag": "blocks are neighbourhoods",
    "transnormer_t2+diag": "blocks are neighbourhoods",
}
LEDGER = {
    ("causal", "longformer+global"): "global tokens see the future and tell the past of it",
    **{("permutation", name): f"order matters: {reason}" for name, reason in ORDERED.items()},
}


def base(name):
    """`longformer` of `longformer+global`."""
    return name.partition("+")[0]


def about(name):
    return entry(base(name))


def has_causal_form(name):
    return about(name).causal and ("causal", name) not in LEDGER


def both_directions(names):
    """Each name bidirectional and, where there is such a form, causal."""
    forms = [
        (name, causal)
        for name in names
        for causal in ([False, True] if has_causal_form(name) else [False])
    ]
    ids = [f"{name}-causal" if causal else name for name, causal in forms]
    return pytest.mark.parametrize(("name", "causal"), forms, ids=ids)


NAMES = [*lln.available(), *VARIANTS]
CORES = [name for name in NAMES if about(name).kind == "core"]
MIXERS = [name for name in NAMES if about(name).kind == "mixer"]
LINEAR = [name for name in NAMES if about(name).complexity != "O(N²)"]

every = pytest.mark.parametrize("name", NAMES)
every_core = pytest.mark.parametrize("name", CORES)
every_mixer = pytest.mark.parametrize("name", MIXERS)
every_form = both_directions(NAMES)
every_core_form = both_directions(CORES)
every_mixer_form = both_directions(MIXERS)
every_linear_form = both_directions(LINEAR)


def build_core(name, **more):
    return contract.build_core(base(name), **VARIANTS.get(name, {}), **more)


def build(name, max_len=LONGEST):
    return contract.build(base(name), max_len=max_len, **VARIANTS.get(name, {}))


def inputs(n, batch=2, dtype=torch.float32, std=1.0, kv_heads=HEADS):
    q = torch.randn(batch, HEADS, n, DIM, dtype=torch.float64) * std
    k = torch.randn(batch, kv_heads, n, DIM, dtype=torch.float64) * std
    v = torch.randn(batch, kv_heads, n, VALUE_DIM, dtype=torch.float64)
    return [x.to(dtype) for x in (q, k, v)]


def skip_exempt(clause, name):
    if (clause, name) in LEDGER:
        pytest.skip(LEDGER[clause, name])


def grad(out, inputs, weight=None):
    """Gradients, 0 for an input that is not read."""
    return torch.autograd.grad(out, inputs, weight, materialize_grads=True)


every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@every_core_form
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_values_and_gradients_are_those_of_the_oracle(name, causal, masked):
    core = build_core(name, kv_heads=2).double()
    q, k, v = (x.requires_grad_() for x in inputs(13, dtype=torch.float64, kv_heads=2))
    key_mask = torch.tensor([[True] * 13, MASKS["right"]]) if masked else None
    see = {"key_mask": key_mask, "causal": causal}
    expected = oracles.attend(base(name), core, q, k, v, **see)
    actual = core(q, k, v, **see)
    if masked:  # what padded queries get means nothing
        expected, actual = (x.where(key_mask[:, None, :, None], 0) for x in (expected, actual))
    assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(actual)
    wanted = grad(expected, (q, k, v), weight)
    assert_close(grad(actual, (q, k, v), weight), wanted, rtol=1e-7, atol=1e-8)


@every_core
def test_float32_is_close_to_the_oracle(name):
    core = build_core(name)
    q, k, v = inputs(40)
    expected = oracles.attend(base(name), core, q, k, v)
    assert_close(core(q, k, v).double(), expected, rtol=1e-5, atol=1e-5)


@every_mixer_form
def test_a_mixer_is_its_oracle(name, causal):
    mixer = build(name).double()
    x = torch.randn(2, 23, HEADS * DIM, dtype=torch.float64, requires_grad=True)
    inputs = (x, *mixer.parameters())
    expected = oracles.mix(base(name), mixer, x, causal=causal)
    actual = mixer(x, causal=causal)
    assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(actual)
    wanted = grad(expected, inputs, weight)
    assert_close(grad(actual, inputs, weight), wanted, rtol=1e-7, atol=1e-8)


@every_form
@every_mask
def test_a_padded_sequence_is_the_short_sequence_alone(name, mask, causal):
    mixer = build(name).double().eval()
    x = torch.randn(2, len(mask), HEADS * DIM, dtype=torch.float64)
    contract.padding_is_left_out(mixer, x, torch.tensor(mask), causal)


@every_core_form
@every_mask
def test_padding_may_hold_anything(name, mask, causal):
    core = build_core(name)
    keep = torch.tensor(mask)
    q, k, v = inputs(len(mask), batch=1)
    clean = core(q, k, v, key_mask=keep[None], causal=causal)
    for junk in (1e4, torch.nan, torch.inf):
        dirty = (x.clone() for x in (q, k, v))
        dirty = [x.masked_fill(~keep[:, None], junk) for x in dirty]
        out = core(*dirty, key_mask=keep[None], causal=causal)
        assert torch.equal(out[:, :, keep], clean[:, :, keep])


@every_form
@every_mask
def test_padded_tokens_may_hold_anything(name, causal, mask):
    mixer = build(name).eval()
    x = torch.randn(1, len(mask), HEADS * DIM)
    contract.padding_may_hold_anything(mixer, x, torch.tensor(mask), causal)


@every_core_form
def test_a_query_that_sees_nothing_gets_zero(name, causal):
    core = build_core(name)
    q, k, v = (x.requires_grad_() for x in inputs(7))
    key_mask = torch.tensor([[False] * 7, [True] * 7])
    out = core(q, k, v, key_mask=key_mask, causal=causal)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert out[1].abs().sum() > 0
    for gradient in grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert torch.equal(gradient[0], torch.zeros_like(gradient[0]))


@every_form
def test_batch_mates_are_strangers(name, causal):
    mixer = build(name).eval()
    contract.batch_mates_are_strangers(mixer, torch.randn(2, 11, HEADS * DIM), causal)


@every
@pytest.mark.parametrize("outlier", [1.0, 1e3])
def test_the_future_cannot_touch_the_past(name, outlier):
    mixer = build(name).eval()
    x = torch.randn(1, 80, HEADS * DIM)
    if not has_causal_form(name):
        with pytest.raises(NotImplementedError, match=base(name)):
            mixer(x, causal=True)
        return
    for present in (0, 1, 37, 63, 64, 78):
        contract.the_future_is_unseen(mixer, x, present, outlier)


@every_form
def test_packed_sequences_are_the_sequences_alone(name, causal):
    mixer = build(name).double().eval()
    x = torch.randn(1, 30, HEADS * DIM, dtype=torch.float64)
    bounds = [0, 3, 3, 17, 28]
    packed = mixer(x, causal=causal, cu_seqlens=torch.tensor(bounds))
    for start, end in pairwise(bounds):
        alone = mixer(x[:, start:end], causal=causal)
        assert_close(packed[:, start:end], alone, rtol=1e-9, atol=1e-10)


@every_core
def test_a_token_of_no_packed_sequence_gets_zero(name):
    out = build_core(name)(*inputs(30, batch=1), cu_seqlens=torch.tensor([0, 17, 28]))
    assert torch.equal(out[:, :, 28:], torch.zeros_like(out[:, :, 28:]))


@every_core_form
def test_it_is_an_average_of_values(name, causal):
    if not about(name).cls.linear_in_values:
        pytest.skip("it is not linear in v, and says so")
    core = build_core(name).double()
    q, k, _ = inputs(12, batch=1, dtype=torch.float64)
    identity = torch.eye(12, dtype=torch.float64).expand(1, HEADS, 12, 12)
    p = core(q, k, identity, causal=causal)
    u, w = torch.randn(2, 1, HEADS, 12, VALUE_DIM, dtype=torch.float64)
    assert_close(core(q, k, 2 * u - w, causal=causal), 2 * p @ u - p @ w)  # linear in v
    if about(name).row_stochastic:
        assert (p >= 0).all()
        sums = p.sum(-1)
        empty = sums == 0  # a ReLU may leave a query without weight
        assert_close(sums.masked_fill(empty, 1), torch.ones_like(sums))
        assert empty.double().mean() < 0.5


@every
def test_order_of_tokens_does_not_matter(name):
    skip_exempt("permutation", name)
    mixer = build(name).eval()
    x = torch.randn(1, 15, HEADS * DIM)
    order = torch.randperm(15)
    assert_close(mixer(x)[:, order], mixer(x[:, order]), rtol=1e-5, atol=1e-5)


@every_form
@pytest.mark.parametrize("n", [0, 1])
def test_empty_and_one_token_sequences(name, n, causal):
    out = build(name)(torch.randn(2, n, HEADS * DIM), causal=causal)
    assert out.shape == (2, n, HEADS * DIM)
    assert out.isfinite().all()


@every_core_form
@pytest.mark.parametrize("std", [0.0, 1e-30, 1e-3, 1e4])
def test_extreme_inputs_stay_finite(name, causal, std):
    core = build_core(name)
    q, k, v = (x.requires_grad_() for x in inputs(70, std=std))
    out = core(q, k, v, causal=causal)
    assert out.isfinite().all()
    for gradient in grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()


@every_core_form
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_as_good_as_rounding_the_weights(name, causal, dtype):
    core = build_core(name)
    q, k, v = (x.requires_grad_() for x in inputs(40, dtype=dtype, std=3.0))
    expected = oracles.attend(base(name), core, q, k, v, causal=causal)
    if weights := oracles.weights(base(name)):
        naive = (weights(core, q, k, causal=causal).to(dtype) @ v).double() - expected
    else:  # there are no weights to round, but the output is
        naive = 2 * (expected.to(dtype).double() - expected)
    out = core(q, k, v, causal=causal)
    assert out.dtype == dtype
    assert (out.double() - expected).abs().max() <= 2 * naive.abs().max()
    for gradient in grad(out.float().sum(), (q, k, v)):
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


@every_mixer_form
@pytest.mark.parametrize("std", [0.0, 1e-30, 1e-3, 1e2])
def test_mixers_stay_finite(name, causal, std):
    mixer = build(name)
    x = (std * torch.randn(3, 40, HEADS * DIM)).requires_grad_()
    key_mask = torch.tensor([[True] * 40, [True] * 9 + [False] * 31, [False] * 40])
    out = mixer(x, key_mask=key_mask, causal=causal)
    assert out.isfinite().all()
    for gradient in grad(out[key_mask].sum(), (x, *mixer.parameters())):
        assert gradient.isfinite().all()


@every_form
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_model_may_be_cast_to_half_precision(name, causal, dtype):
    mixer = build(name).to(dtype)
    x = torch.randn(2, 20, HEADS * DIM, dtype=dtype, requires_grad=True)
    out = mixer(x, causal=causal)
    assert out.dtype == dtype
    assert out.isfinite().all()
    for gradient in grad(out.float().sum(), (x, *mixer.parameters())):
        assert gradient.isfinite().all()


@every_mixer_form
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
def test_mixers_in_half_precision(name, causal, dtype, autocast):
    mixer = build(name).to(dtype).double()  # exact, with parameters that half precision can hold
    x = torch.randn(2, 40, HEADS * DIM).to(dtype)
    expected = mixer(x.double(), causal=causal)
    if autocast:
        with torch.autocast("cpu", dtype):
            out = mixer.float()(x.float(), causal=causal)
    else:
        out = mixer.to(dtype)(x, causal=causal)
    assert out.dtype == dtype
    error = (out.double() - expected).norm() / expected.norm()
    assert error < 8 * torch.finfo(dtype).eps  # a few roundings: of projections, mixture, output


@every_core
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_share_keys(name, kv_heads):
    core = build_core(name, kv_heads=kv_heads)
    q, k, v = inputs(20, kv_heads=kv_heads)
    expected = oracles.attend(base(name), core, q, k, v)
    assert_close(core(q, k, v).double(), expected, rtol=1e-4, atol=1e-5)


@every
def test_every_parameter_gets_a_gradient(name):
    mixer = build(name)
    mixer(torch.randn(2, 20, HEADS * DIM)).square().sum().backward()
    for parameter_name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, parameter_name
        # A bias of the keys cancels in softmax, so its gradient is 0 but for rounding.
        assert parameter.grad.abs().sum() > 0, parameter_name


@every
def test_state_dict_round_trip(name):
    mixer, other = build(name), build(name)
    with torch.no_grad():
        for tensor in mixer.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.1)
    x = torch.randn(2, 20, HEADS * DIM)
    assert not torch.equal(other.eval()(x), mixer.eval()(x))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other(x), mixer(x))


@every_form
def test_compiles_into_one_graph(name, causal):
    mixer = build(name)
    x = torch.randn(2, 20, HEADS * DIM)
    key_mask = torch.rand(2, 20) > 0.3
    torch._dynamo.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    assert_close(
        compiled(x, key_mask=key_mask, causal=causal), mixer(x, key_mask=key_mask, causal=causal)
    )


@every_linear_form
def test_memory_grows_linearly(name, causal):

    def saved_bytes(n):
        mixer, total = build(name, max_len=4096), 0

        def pack(tensor):
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            mixer(torch.randn(1, n, HEADS * DIM), causal=causal)
        return total

    assert saved_bytes(4096) <= 2.1 * saved_bytes(2048)


@every
def test_unknown_options_are_named(name):
    with pytest.raises(ValueError, match=r"blok_size.*valid"):
        lln.build(base(name), dim=32, heads=4, max_len=LONGEST, blok_size=3)
