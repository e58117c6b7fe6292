import math
import warnings

import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import lln
from lln.matching import (
    Matching,
    UncalibratedWarning,
    calibrating,
    curve,
    match,
    measure,
    width,
)
from lln.matching.columns import correct
from lln.matching.statistics import sample

QUIET = pytest.mark.filterwarnings("ignore:LLN attention was never calibrated")


def inputs(n=20, heads=2, dim=8, std=1.0, batch=2):
    return [std * torch.randn(batch, heads, n, dim) for _ in range(3)]


def core(matching, name="lln", **options):
    return lln.build_core(name, heads=2, head_dim=8, matching=matching, **options)


def statistics(q, k):
    calibrated = curve(Matching(), q.shape[3])
    return correct(calibrated, measure(q, k), sample(q, k, None, None), True)[0]


def test_paper_preset_is_the_authors_module():
    """Values of the authors' LLNPlusDiagAttention, whose block size is the head dimension, 3."""
    q, k, v = (torch.randn(1, 2, 4, 3) for _ in range(3))
    expected = torch.tensor(
        [
            [
                [0.5032, 0.5248, -0.1797],
                [0.6414, 0.4807, -0.0756],
                [0.4694, 0.5255, -0.2264],
                [1.0657, 0.3068, 0.3656],
            ],
            [
                [-0.7917, -1.0734, -0.5935],
                [-0.7895, -1.1420, -0.6682],
                [-0.7662, -0.2344, -0.5392],
                [-0.4690, -0.7762, -0.9950],
            ],
        ]
    )[None]
    theirs = lln.build_core("lln_diag", heads=2, head_dim=3, block_size=3, matching="paper")
    assert_close(theirs(q, k, v), expected, rtol=0, atol=1e-4)
    function = lln.lln_diag_attention(q, k, v, block_size=3, matching="paper")
    assert_close(function, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("preset", ["paper", "entropy"])
def test_function_and_module_agree(preset):
    q, k, v = inputs()
    key_mask = torch.rand(2, 20) > 0.3
    expected = core(preset)(q, k, v, key_mask=key_mask)
    assert torch.equal(lln.lln_attention(q, k, v, key_mask=key_mask, matching=preset), expected)


def test_eq_10_splits_the_width_evenly():
    q, k, _ = inputs(std=1.5)
    matching = Matching(target="linear", scores="independent", center_keys=False, fit=(0.2, -0.3))
    alpha, beta, shift = match(matching, q, k)
    var_q, var_k = q.var((-2, -1)), k.var((-2, -1))
    width = (var_q * var_k + 0.3) / 0.2
    assert_close(alpha**2 * var_q, width / 2)
    assert_close(beta**2 * var_k, width / 2)
    assert shift is None


def test_heads_that_share_keys_share_beta():
    q, k = torch.randn(1, 4, 50, 8), torch.randn(1, 2, 50, 8)
    q[:, 1] *= 2
    matching = Matching(target="variance")
    alpha, beta, _ = match(matching, q, k)
    assert beta.shape == (1, 2)
    one, two = (match(matching, q[:, i : i + 1], k[:, :1]) for i in (0, 1))
    assert_close(alpha[:, :2], torch.cat([one.alpha, two.alpha], 1))
    assert_close(beta[:, :1], ((one.beta**2 + two.beta**2) / 2).sqrt())


def test_a_shift_of_all_keys_changes_nothing_when_keys_are_centred():
    q, k, v = inputs()
    shift = 3 * torch.randn(8)
    assert_close(core("entropy")(q, k + shift, v), core("entropy")(q, k, v), rtol=1e-4, atol=1e-5)
    uncentred = core(Matching(center_keys=False))
    assert (uncentred(q, k + shift, v) - uncentred(q, k, v)).abs().max() > 0.1


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_constant_inputs_attend_evenly(value):
    q, k, v = inputs()
    for preset in ("paper", "entropy"):
        out = core(preset)(torch.full_like(q, value), torch.full_like(k, value), v)
        assert_close(out, v.mean(2, keepdim=True).expand_as(v))


@pytest.mark.parametrize("statistics", ["sequence", "batch"])
def test_causal_statistics_that_see_the_future_raise(statistics):
    q, k, v = inputs()
    matching = Matching(statistics=statistics)
    with pytest.raises(ValueError, match=f"{statistics}.*leak the future"):
        core(matching)(q, k, v, causal=True)
    with pytest.raises(ValueError, match="stores nothing"):
        core(matching).recurrent(q, k, v)


def test_paper_preset_cannot_be_causal():
    with pytest.raises(ValueError, match="leak the future"):
        core("paper")(*inputs(), causal=True)


def test_functions_need_alpha_and_beta_to_be_causal():
    q, k, v = inputs()
    for function in (lln.lln_attention, lln.lln_diag_attention):
        with pytest.raises(ValueError, match="causal LLN attention needs alpha and beta"):
            function(q, k, v, causal=True)
        with pytest.raises(ValueError, match="given together"):
            function(q, k, v, alpha=1.0)
        assert function(q, k, v, alpha=1.0, beta=1.0, causal=True).isfinite().all()


def test_functions_cannot_store_statistics():
    with pytest.raises(ValueError, match="'running' needs a module"):
        lln.lln_attention(*inputs(), matching=Matching(statistics="running"))


def test_uncalibrated_takes_one_and_says_so_once():
    q, k, v = inputs(n=200, std=3.0)
    frozen = core(Matching(statistics="frozen"), max_len=200)
    with pytest.warns(UncalibratedWarning, match="never calibrated"):
        out = frozen(q, k, v)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(frozen(q, k, v), out)
    sigma = width(curve(Matching(), 8), torch.ones(1, 2), torch.tensor([[math.log(200)]]))
    assert_close(frozen.matcher.frozen(q, k).alpha, sigma / math.sqrt(2))
    assert_close(frozen.matcher.frozen(q, k).beta, sigma / math.sqrt(2))


@pytest.mark.parametrize("name", ["lln", "lln_diag"])
def test_calibrating_stores_the_statistics_of_the_data(name):
    frozen = core(Matching(statistics="frozen"), name)
    batches = [inputs(std=s) for s in (1.0, 2.0)]
    with calibrating(frozen):
        for q, k, v in batches:
            frozen(q, k, v, causal=True)
    measured = [statistics(q, k) for q, k, _ in batches]
    stored = frozen.matcher._unpack(frozen.matcher.stored)
    for i, field in enumerate(stored):
        expected = torch.stack([m[i].mean(0) for m in measured]).mean(0)
        assert_close(field[0], expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frozen(*batches[0], causal=True)


def test_calibration_travels_in_the_state_dict():
    q, k, v = inputs(std=2.0)
    mixer = lln.build("lln", dim=16, heads=2)
    with calibrating(mixer):
        mixer(torch.randn(2, 30, 16) * 3)
    other = lln.build("lln", dim=16, heads=2)
    other.load_state_dict(mixer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(other.core(q, k, v, causal=True), mixer.core(q, k, v, causal=True))


def test_calibrating_nothing_is_an_error():
    with pytest.raises(ValueError, match="no LLN attention"), calibrating(torch.nn.Linear(2, 2)):
        pass


def test_auto_is_sequence_or_frozen():
    q, k, v = inputs(std=2.0)
    auto = core("entropy")
    assert torch.equal(auto(q, k, v), core(Matching(statistics="sequence"))(q, k, v))
    with calibrating(auto):
        auto(q, k, v)
    frozen = core(Matching(statistics="frozen"))
    frozen.load_state_dict(auto.state_dict())
    assert torch.equal(auto(q, k, v, causal=True), frozen(q, k, v, causal=True))


@QUIET
def test_running_averages_use_earlier_steps_only():
    running = core(Matching(statistics="running"))
    fresh = running.matcher.stored.clone()
    batches = [inputs(std=s) for s in (1.0, 3.0, 2.0)]
    q, k, v = batches[0]
    assert_close(running(q, k, v, causal=True), core("entropy")(q, k, v, causal=True))
    first = running.matcher._pack(statistics(*batches[0][:2]))
    assert_close(running.matcher.stored, first)  # the assumed values carry no weight
    assert not torch.equal(running.matcher.stored, fresh)
    running(*batches[1])
    second = running.matcher._pack(statistics(*batches[1][:2]))
    assert_close(running.matcher.stored, (first + second) / 2)
    running.eval()
    before = running.matcher.stored.clone()
    running(*batches[2])
    assert torch.equal(running.matcher.stored, before)


@QUIET
def test_running_averages_survive_gradient_checkpointing():
    plain, checked = (core(Matching(statistics="running")) for _ in range(2))
    for std in (1.0, 2.0):
        q, k, v = (x.requires_grad_() for x in inputs(std=std))
        expected = torch.autograd.grad(plain(q, k, v).square().sum(), (q, k, v))
        out = checkpoint(checked, q, k, v, use_reentrant=False)
        actual = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert_close(actual, expected, rtol=0, atol=0)
        assert torch.equal(checked.matcher.stored, plain.matcher.stored)
        assert torch.equal(checked.matcher.batches, plain.matcher.batches)


@QUIET
@pytest.mark.parametrize("name", ["lln", "lln_diag"])
def test_prefill_and_steps_are_one_pass(name):
    q, k, v = inputs(n=40)
    options = {"block_size": 7} if name == "lln_diag" else {}
    causal = core("entropy", name, **options)
    whole = causal(q, k, v, causal=True)
    out, state = causal.recurrent(*(x[:, :, :17] for x in (q, k, v)))
    parts = [out]
    for i in range(17, 40):
        out, state = causal.recurrent(*(x[:, :, i : i + 1] for x in (q, k, v)), state)
        parts.append(out)
    assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combine", ["average", "learnable_scale", "learnable_ratio"])
def test_combinations_start_as_the_average(combine):
    q, k, v = inputs()
    diag = core("entropy", "lln_diag", combine=combine)
    assert_close(diag(q, k, v), core("entropy", "lln_diag")(q, k, v))
    shapes = {name: tuple(p.shape) for name, p in diag.named_parameters()}
    shares = {"average": 0, "learnable_scale": 2, "learnable_ratio": 1}[combine]
    assert list(shapes.values()) == [(2, 1, 8)] * shares
    if shares:
        with torch.no_grad():
            diag.lln_share.fill_(1.0)
            if combine == "learnable_scale":
                diag.diag_share.fill_(0.0)
        assert_close(diag(q, k, v), core("entropy")(q, k, v))


@QUIET
@pytest.mark.parametrize("causal", [False, True])
def test_a_module_in_half_precision_matches_as_before(causal):
    q, k, v = (x.to(torch.bfloat16) for x in inputs())
    expected = core("entropy")(q, k, v, causal=causal)
    half = core("entropy").to(torch.bfloat16)
    assert_close(half(q, k, v, causal=causal), expected, rtol=0.02, atol=0.02)
    assert core("entropy")(q.double(), k.double(), v.double(), causal=causal).dtype == torch.float64


def test_bad_matching_is_named():
    for bad in ({"target": "mean"}, {"scores": "guess"}, {"statistics": "global"}):
        with pytest.raises(ValueError, match=f"matching.{next(iter(bad))} must be one of"):
            Matching(**bad)
    with pytest.raises(ValueError, match="matching must be one of entropy, paper"):
        core("papr")
    with pytest.raises(ValueError, match="belongs to target='linear'"):
        Matching(fit=(1.0, 0.0))
    with pytest.raises(ValueError, match="momentum"):
        Matching(momentum=0.0)
    with pytest.raises(ValueError, match="combine must be one of"):
        core("entropy", "lln_diag", combine="sum")
    q, k, v = inputs(batch=1)
    with pytest.raises(ValueError, match="padded batches, not cu_seqlens"):
        core("paper")(q, k, v, cu_seqlens=torch.tensor([0, 20]))
