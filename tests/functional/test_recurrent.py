"""Decoding: prefill, pieces and steps give what one causal pass gives; states can be kept."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load, save

from functional.forms import (
    ALPHA,
    BETA,
    BLOCK,
    CHUNK,
    MECHANISMS,
    SHARES,
    assert_identical,
    assert_same,
    assert_same_with_gradients,
    draw,
    out_and_gradients,
)
from lln.functional import (
    LLNDiagState,
    block_diagonal_recurrent,
    lln_diag_recurrent,
    lln_recurrent,
)

STEPS = {
    "lln": lambda q, k, v, state, **s: lln_recurrent(
        q, k, v, ALPHA, BETA, state, chunk_size=CHUNK, **s
    ),
    "block": lambda *args, **s: block_diagonal_recurrent(*args, block_size=BLOCK, **s),
    "lln_diag": lambda q, k, v, state, **s: lln_diag_recurrent(
        q, k, v, ALPHA, BETA, state, block_size=BLOCK, chunk_size=CHUNK, **SHARES, **s
    ),
}
each_mechanism = pytest.mark.parametrize("mechanism", STEPS)
N = 23
CUTS = {
    "at_once": [0, N],
    "steps": [*range(N + 1)],
    "prompt_then_steps": [0, *range(9, N + 1)],
    "almost_all_then_step": [0, N - 1, N],
    "pieces": [0, 2, 9, 10, 20, N],
    "blocks": [0, 5, 10, 20, N],
}
each_cut = pytest.mark.parametrize("cuts", CUTS)


def decode(mechanism, q, k, v, cuts, state=None, key_mask=None, **setting):
    """The pieces between `cuts` one after the other, and the state after the last."""
    outs = []
    for start, end in pairwise(cuts):
        piece = (x[:, :, start:end] for x in (q, k, v))
        keep = None if key_mask is None else key_mask[:, start:end]
        out, state = STEPS[mechanism](*piece, state, key_mask=keep, **setting)
        outs.append(out)
    return torch.cat(outs, 2), state


@each_mechanism
class TestEqualsOnePass:
    def check(self, mechanism, cuts, **setting):
        assert_same_with_gradients(
            lambda *x: decode(mechanism, *x, CUTS[cuts], **setting)[0],
            lambda *x: MECHANISMS[mechanism].run(*x, causal=True, **setting),
            *draw(N, heads=4, kv_heads=2, dtype=torch.float64),
            rtol=1e-9,
            atol=1e-11,
        )

    @each_cut
    def test_plain(self, mechanism, cuts):
        self.check(mechanism, cuts)

    @each_cut
    @pytest.mark.parametrize("padding", ["left", "right", "holes", "nothing"])
    def test_key_mask(self, mechanism, cuts, padding):
        keep = torch.ones(2, N, dtype=torch.bool)
        if padding == "holes":
            keep = torch.rand(2, N) > 0.4
        else:
            keep[0] &= {
                "left": torch.arange(N) >= 7,
                "right": torch.arange(N) < 7,
                "nothing": torch.zeros(N, dtype=torch.bool),
            }[padding]
        self.check(mechanism, cuts, key_mask=keep)

    @each_cut
    def test_options(self, mechanism, cuts):
        options = {
            "lln": {"key_shift": torch.randn(2, 5)},
            "block": {"scale": 0.8},
            "lln_diag": {"scale": 0.8, "key_shift": torch.randn(2, 5)},
        }[mechanism]
        self.check(mechanism, cuts, **options)

    def test_junk_in_padding(self, mechanism):
        inputs, keep = draw(N), torch.rand(2, N) > 0.4
        real = keep[:, None, :, None]
        dirty = [x.masked_fill(~real, torch.nan) for x in inputs]
        for cuts in CUTS.values():
            clean_out, clean_state = decode(mechanism, *inputs, cuts, key_mask=keep)
            out, state = decode(mechanism, *dirty, cuts, key_mask=keep)
            assert_identical(out.where(real, 0), clean_out.where(real, 0))
            assert_identical(state, clean_state)

    @pytest.mark.parametrize("cuts", ["steps", "pieces"])
    @pytest.mark.parametrize(
        ("std", "dtype"),
        [(30, torch.float16), (30, torch.bfloat16), (1e4, torch.bfloat16), (1e4, torch.float32)],
    )
    def test_extremes_stay_finite(self, mechanism, cuts, std, dtype):
        out, gradients = out_and_gradients(
            lambda *x: decode(mechanism, *x, CUTS[cuts])[0],
            *((std * x).to(dtype) for x in draw(N)),
        )
        for x in (out, *gradients):
            assert x.dtype == dtype
            assert x.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_low_precision(self, mechanism, dtype):
        """The state of LLN does not lose digits from step to step."""
        q, k, v = draw(N, dtype=dtype)
        once = MECHANISMS[mechanism].run(q, k, v, causal=True)
        out, state = decode(mechanism, q, k, v, CUTS["steps"])
        assert_same(out, once, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
        lln = {"lln": state, "lln_diag": getattr(state, "lln", None)}.get(mechanism)
        assert lln is None or {x.dtype for x in lln} == {torch.float32}


def test_autocast():
    inputs = draw(N)
    plain = decode("lln", *inputs, CUTS["prompt_then_steps"])
    with torch.autocast("cpu", torch.bfloat16):
        mixed = decode("lln", *inputs, CUTS["prompt_then_steps"])
    assert_same(mixed, plain, rtol=1e-6, atol=1e-6)


@each_mechanism
class TestState:
    def test_size_is_constant(self, mechanism):
        """Also in memory: no state is a view that holds on to the whole prompt."""
        _, start = decode(mechanism, *draw(1, kv_heads=1), [0, 1])
        _, later = decode(mechanism, *draw(100, kv_heads=1), [0, 99, 100])
        assert [x.shape for x in tensors(later)] == [x.shape for x in tensors(start)]
        held = [x.untyped_storage().nbytes() for x in tensors(later)]
        assert held == [x.nbytes for x in tensors(later)]

    @pytest.mark.parametrize("order", [[1, 0, 2], [2, 2, 0], [1]])
    def test_reorder(self, mechanism, order):
        inputs, keep = draw(N, batch=3), torch.rand(3, N) > 0.3
        _, state = decode(mechanism, *inputs, [0, 9], key_mask=keep)
        inputs, keep = [x[order] for x in inputs], keep[order]
        state = state.reorder(torch.tensor(order))
        rest, _ = decode(mechanism, *inputs, [9, 10, N], state, keep)
        out, _ = decode(mechanism, *inputs, [0, 9, 10, N], key_mask=keep)
        assert_same(rest, out[:, :, 9:])

    def test_survives_a_file(self, mechanism):
        inputs, keep = draw(N), torch.rand(2, N) > 0.3
        keep[0, :9] = False  # −inf is in the file, too
        _, state = decode(mechanism, *inputs, [0, 9], key_mask=keep)
        again = reload(state)
        assert_identical(again, state)
        assert_identical(
            decode(mechanism, *inputs, [9, 10, N], again, keep),
            decode(mechanism, *inputs, [9, 10, N], state, keep),
        )

    @pytest.mark.parametrize("n", [1, 3, 8])
    @pytest.mark.parametrize("before", [1, 5, 9])
    def test_padding_leaves_it_as_it_is(self, mechanism, before, n):
        _, state = decode(mechanism, *draw(before), [0, before])
        padding = torch.zeros(2, n, dtype=torch.bool)
        _, after = decode(mechanism, *draw(n), [0, n], state, padding)
        assert_identical(after, state)

    def test_padding_alone_is_the_start(self, mechanism):
        prompt, keep = draw(4), torch.zeros(2, 4, dtype=torch.bool)
        out, state = decode(mechanism, *prompt, [0, 4], key_mask=keep)
        assert_identical(out, torch.zeros_like(out))
        inputs = draw(N)
        assert_same(
            decode(mechanism, *inputs, CUTS["pieces"], state),
            decode(mechanism, *inputs, CUTS["pieces"]),
        )

    @pytest.mark.parametrize("start", [False, True])
    def test_no_new_tokens(self, mechanism, start):
        state = None if start else decode(mechanism, *draw(9), [0, 9])[1]
        out, after = decode(mechanism, *draw(0), [0, 0], state)
        assert out.shape == (2, 2, 0, 3)
        inputs = draw(6)
        assert_same(
            decode(mechanism, *inputs, [0, 6], after), decode(mechanism, *inputs, [0, 6], state)
        )

    def test_inputs_stay_as_they_are(self, mechanism):
        inputs = draw(N)
        _, state = decode(mechanism, *inputs, [0, 9])
        copies = [x.clone() for x in (*inputs, *tensors(state))]
        decode(mechanism, *inputs, [9, 10, N], state)
        assert_identical([*inputs, *tensors(state)], copies)

    @pytest.mark.parametrize("n", [1, 6])
    @pytest.mark.parametrize("masked", [False, True])
    def test_meta_device(self, mechanism, n, masked):
        inputs = [x.to("meta") for x in draw(12, heads=4, kv_heads=2)]
        keep = torch.ones(2, 12, dtype=torch.bool, device="meta") if masked else None
        out, state = decode(mechanism, *inputs, [0, 6, 6 + n], key_mask=keep)
        assert out.shape == (2, 4, 6 + n, 3)
        assert all(x.device.type == "meta" for x in tensors(state))


def tensors(state):
    return [x for part in state for x in tensors(part)] if isinstance(state, tuple) else [state]


def reload(state):
    """Writes the fields to a file by name, and reads them."""
    if isinstance(state, LLNDiagState):
        return LLNDiagState(*(reload(part) for part in state))
    return type(state)(**load(save(state._asdict())))


@pytest.mark.parametrize("mechanism", ["block", "lln_diag"])
def test_state_of_another_block_size(mechanism):
    _, state = decode(mechanism, *draw(N), [0, N])
    step = {
        "block": block_diagonal_recurrent,
        "lln_diag": lambda q, k, v, *s, **o: lln_diag_recurrent(q, k, v, ALPHA, BETA, *s, **o),
    }[mechanism]
    with pytest.raises(ValueError, match=f"block_size {BLOCK}, got {BLOCK + 1}"):
        step(*draw(1), state, block_size=BLOCK + 1)
