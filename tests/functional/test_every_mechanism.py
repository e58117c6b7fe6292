"""What holds for softmax, linear, block-diagonal, LLN and LLN+Diag attention alike."""

from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from functional.forms import (
    MECHANISMS,
    assert_identical,
    assert_same,
    assert_same_with_gradients,
    draw,
    oracle,
    out_and_gradients,
)

each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)
each_direction = pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])


def mask(*rows):
    return torch.tensor([[c == "x" for c in row] for row in rows])


MASKS = {
    "right": mask("xxxxxxxxxxx...", "xxxxxxxxxxxxxx"),
    "left": mask("...xxxxxxxxxxx", "xxxxxxxxxxxxxx"),
    "holes": mask("x.xx...xxxxx.x", "xx.xxxxx.xxxx."),
    "nothing": mask("..............", "xxxxxxxxxx...."),
}
PACKS = {
    "one": [0, 14],
    "three": [0, 3, 8, 14],
    "some_empty": [0, 0, 6, 6, 6, 14, 14],
    "gaps_outside": [2, 5, 11],
}
each_mask = pytest.mark.parametrize("keep", MASKS)
each_pack = pytest.mark.parametrize("bounds", PACKS)


def check_against_oracle(mechanism, inputs, **setting):
    assert_same_with_gradients(
        lambda q, k, v: MECHANISMS[mechanism].run(q, k, v, **setting),
        lambda q, k, v: oracle(mechanism, q, k, v, **setting),
        *inputs,
        rtol=1e-9,
        atol=1e-11,
    )


@each_direction
@each_mechanism
class TestOracle:
    """Values and gradients in float64, where only a wrong formula makes a difference."""

    @pytest.mark.parametrize("dim", [1, 3, 7])
    def test_head_dimensions(self, mechanism, causal, dim):
        inputs = draw(dim=dim, dim_v=4, dtype=torch.float64)
        check_against_oracle(mechanism, inputs, causal=causal)

    def test_many_chunks(self, mechanism, causal):
        inputs = draw(150, batch=1, dtype=torch.float64)  # 38 chunks in three groups
        check_against_oracle(mechanism, inputs, causal=causal)

    @each_mask
    def test_key_mask(self, mechanism, causal, keep):
        inputs = draw(14, dtype=torch.float64)
        check_against_oracle(mechanism, inputs, causal=causal, key_mask=MASKS[keep])

    @each_pack
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_packed(self, mechanism, causal, bounds, dtype):
        inputs = draw(14, batch=1, heads=4, kv_heads=2, dtype=torch.float64)
        cu_seqlens = torch.tensor(PACKS[bounds], dtype=dtype)
        check_against_oracle(mechanism, inputs, causal=causal, cu_seqlens=cu_seqlens)

    def test_many_packed(self, mechanism, causal):
        inputs = draw(150, batch=1, dtype=torch.float64)
        cu_seqlens = torch.tensor([0, 1, 3, 10, 90, 91, 91, 140, 150])
        check_against_oracle(mechanism, inputs, causal=causal, cu_seqlens=cu_seqlens)

    def test_packed_with_key_mask(self, mechanism, causal):
        inputs = draw(14, batch=1, dtype=torch.float64)
        setting = {"cu_seqlens": torch.tensor([0, 5, 14]), "key_mask": MASKS["holes"][:1]}
        check_against_oracle(mechanism, inputs, causal=causal, **setting)

    @pytest.mark.parametrize("keep", [None, *MASKS])
    @pytest.mark.parametrize("n_q", [1, 6, 17])
    def test_other_number_of_queries(self, mechanism, causal, n_q, keep):
        inputs = draw(n_q, 14, heads=4, kv_heads=2, dtype=torch.float64)
        key_mask = None if keep is None else MASKS[keep]
        check_against_oracle(mechanism, inputs, causal=causal, key_mask=key_mask)

    @pytest.mark.parametrize("masked", [False, True], ids=["all", "key_mask"])
    @pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (9, 1), (5, 0), (0, 5), (0, 0)])
    def test_short_and_empty(self, mechanism, causal, n_q, n_k, masked):
        q, k, v = draw(n_q, n_k, dtype=torch.float64)
        key_mask = torch.ones(2, n_k, dtype=torch.bool) if masked else None
        out = MECHANISMS[mechanism].run(q, k, v, causal=causal, key_mask=key_mask)
        assert_same(out, oracle(mechanism, q, k, v, causal=causal, key_mask=key_mask))

    def test_packed_empty(self, mechanism, causal):
        q, k, v = draw(0, batch=1)
        out = MECHANISMS[mechanism].run(q, k, v, causal=causal, cu_seqlens=torch.tensor([0, 0, 0]))
        assert out.shape == v.shape


@each_direction
@pytest.mark.parametrize("mechanism", ["softmax", "block", "lln_diag"])
def test_scale_of_the_softmax(mechanism, causal):
    check_against_oracle(mechanism, draw(dtype=torch.float64), causal=causal, scale=0.8)


@each_direction
@each_mechanism
class TestPadding:
    @each_mask
    def test_padded_equals_short_alone(self, mechanism, causal, keep):
        q, k, v = draw(14)
        out = MECHANISMS[mechanism].run(q, k, v, causal=causal, key_mask=MASKS[keep])
        for b, real in enumerate(MASKS[keep]):
            short = (x[b : b + 1, :, real] for x in (q, k, v))
            alone = MECHANISMS[mechanism].run(*short, causal=causal)
            assert_same(out[b : b + 1, :, real], alone)

    @each_mask
    @pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e30])
    def test_junk_changes_nothing(self, mechanism, causal, keep, junk):
        q, k, v = draw(14)
        real = MASKS[keep][:, None, :, None]
        run = MECHANISMS[mechanism].run
        clean = run(q, k, v, causal=causal, key_mask=MASKS[keep])
        q, k, v = (x.masked_fill(~real, junk) for x in (q, k, v))
        dirty = run(q, k, v, causal=causal, key_mask=MASKS[keep])
        assert_identical(dirty.where(real, 0), clean.where(real, 0))

    @each_mask
    @pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e30])
    def test_junk_changes_no_gradient(self, mechanism, causal, keep, junk):
        q, k, v = draw(14)
        real = MASKS[keep][:, None, :, None]

        def run(q, k, v):
            return MECHANISMS[mechanism].run(q, k, v, causal=causal, key_mask=MASKS[keep])

        clean = out_and_gradients(run, q, k, v)
        dirty = out_and_gradients(run, q, *(x.masked_fill(~real, junk) for x in (k, v)))
        assert_identical(dirty, clean)
        for gradient in clean[1][1:]:
            assert_identical(gradient.where(real, 0), gradient)

    def test_nothing_kept_gives_zero(self, mechanism, causal):
        inputs, keep = draw(14), MASKS["nothing"]
        out, gradients = out_and_gradients(
            lambda q, k, v: MECHANISMS[mechanism].run(q, k, v, causal=causal, key_mask=keep),
            *inputs,
        )
        for x in (out, *gradients):
            assert_identical(x[0], torch.zeros_like(x[0]))
            assert x[1].isfinite().all()
            assert x[1].any()


@each_mechanism
class TestIndependence:
    @each_direction
    @pytest.mark.parametrize("keep", [None, "holes"])
    def test_of_the_rest_of_the_batch(self, mechanism, causal, keep):
        setting = {"causal": causal, "key_mask": None if keep is None else MASKS[keep]}
        inputs = draw(14)
        changed = [torch.cat([100 * x[:1], x[1:]]) for x in inputs]
        before = MECHANISMS[mechanism].run(*inputs, **setting)
        after = MECHANISMS[mechanism].run(*changed, **setting)
        assert_identical(after[1], before[1])
        assert not torch.equal(after[0], before[0])

    @pytest.mark.parametrize("start", [1, 7, 13, 37])
    @pytest.mark.parametrize("factor", [2, 1e3])
    def test_of_the_future(self, mechanism, start, factor):
        inputs = draw(38)
        changed = [torch.cat([x[:, :, :start], factor * x[:, :, start:]], 2) for x in inputs]
        before = MECHANISMS[mechanism].run(*inputs, causal=True)
        after = MECHANISMS[mechanism].run(*changed, causal=True)
        assert_identical(after[:, :, :start], before[:, :, :start])
        assert not torch.equal(after[:, :, start:], before[:, :, start:])

    @each_direction
    @each_pack
    def test_of_the_rest_of_the_pack(self, mechanism, causal, bounds):
        q, k, v = draw(14, batch=1)
        cu_seqlens = torch.tensor(PACKS[bounds])
        out = MECHANISMS[mechanism].run(q, k, v, causal=causal, cu_seqlens=cu_seqlens)
        expected = torch.zeros_like(out)
        for start, end in pairwise(PACKS[bounds]):
            alone = (x[:, :, start:end] for x in (q, k, v))
            expected[:, :, start:end] = MECHANISMS[mechanism].run(*alone, causal=causal)
        assert_same(out, expected)


@each_direction
@each_mechanism
class TestCall:
    """However it is called, the result is the same."""

    @pytest.mark.parametrize("kv_heads", [1, 2])
    def test_grouped_heads(self, mechanism, causal, kv_heads):
        run = MECHANISMS[mechanism].run
        assert_same_with_gradients(
            lambda q, k, v: run(q, k, v, causal=causal),
            lambda q, k, v: run(
                q, *(x.repeat_interleave(6 // kv_heads, 1) for x in (k, v)), causal=causal
            ),
            *draw(heads=6, kv_heads=kv_heads),
        )

    def test_views(self, mechanism, causal):
        contiguous = draw()
        views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in contiguous]
        assert not any(x.is_contiguous() for x in views)

        def run(q, k, v):
            return MECHANISMS[mechanism].run(q, k, v, causal=causal)

        assert_same(out_and_gradients(run, *views), out_and_gradients(run, *contiguous))

    def test_inputs_stay_as_they_are(self, mechanism, causal):
        inputs, keep = draw(14), MASKS["holes"].clone()
        copies = [x.clone() for x in inputs]
        out_and_gradients(
            lambda q, k, v: MECHANISMS[mechanism].run(q, k, v, causal=causal, key_mask=keep),
            *inputs,
        )
        assert_identical([*inputs, keep], [*copies, MASKS["holes"]])

    def test_checkpointing(self, mechanism, causal):
        def run(q, k, v):
            return MECHANISMS[mechanism].run(q, k, v, causal=causal)

        saved = []
        inputs = draw()
        plain = out_and_gradients(run, *inputs)
        again = out_and_gradients(
            lambda *x: checkpoint(lambda *y: saved.append(1) or run(*y), *x, use_reentrant=False),
            *inputs,
        )
        assert_identical(again, plain)
        assert len(saved) == 2

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtype_of_q(self, mechanism, causal, dtype):
        out, gradients = out_and_gradients(
            lambda q, k, v: MECHANISMS[mechanism].run(q, k, v, causal=causal), *draw(dtype=dtype)
        )
        assert {x.dtype for x in (out, *gradients)} == {dtype}

    def test_autocast(self, mechanism, causal):
        inputs = draw(30)

        def run(q, k, v):
            return MECHANISMS[mechanism].run(q, k, v, causal=causal)

        def run_in_autocast(q, k, v):
            with torch.autocast("cpu", torch.bfloat16):
                return run(q, k, v)

        # Scaled dot products are what autocast is for: they run, and should, in its dtype.
        bound = 1e-6 if mechanism in ("linear", "lln") else 2e-2
        plain, mixed = out_and_gradients(run, *inputs), out_and_gradients(run_in_autocast, *inputs)
        assert mixed[0].dtype == torch.float32
        assert_same(mixed, plain, rtol=bound, atol=bound)

    @pytest.mark.parametrize("setting", ["plain", "key_mask", "packed", "other_n_q"])
    def test_meta_device(self, mechanism, causal, setting):
        n_q, batch = (7 if setting == "other_n_q" else 20), (1 if setting == "packed" else 2)
        q, k, v = (x.to("meta") for x in draw(n_q, 20, heads=4, kv_heads=2, batch=batch))
        extra = {
            "key_mask": {"key_mask": torch.ones(2, 20, dtype=torch.bool, device="meta")},
            "packed": {"cu_seqlens": torch.zeros(4, dtype=torch.int64, device="meta")},
        }.get(setting, {})
        out = MECHANISMS[mechanism].run(q, k, v, causal=causal, **extra)
        assert out.device.type == "meta"
        assert out.shape == (batch, 4, n_q, 3)
        assert out.dtype == q.dtype
