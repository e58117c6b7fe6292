"""A converted model imitates the original, is the same after an interruption, and loads again."""

import json
from contextlib import contextmanager

import pytest
import torch
from scipy.stats import spearmanr

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")
pytest.importorskip("datasets", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import MODELS, SIZES, TEXT, build, inputs, run  # noqa: E402
from lln.attention import Attention  # noqa: E402
from lln.data import load_tokenizer  # noqa: E402
from lln.integrations.hf.conversion import Plan, convert, work  # noqa: E402
from lln.integrations.hf.conversion.descent import Descent  # noqa: E402
from lln.integrations.hf.conversion.fidelity import rank_correlation  # noqa: E402
from lln.integrations.hf.conversion.imitation import beside_softmax  # noqa: E402
from lln.integrations.hf.conversion.passages import passages  # noqa: E402
from lln.matching import UncalibratedWarning  # noqa: E402

LINES = [f"line {i}: {i * i % 97} apples and {i * 7 % 31} pears, or {i % 11}?" for i in range(300)]
QUICK = Plan(length=32, batch_size=4, calibration_batches=2, steps=8, rate=1e-2)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Folders of tiny models that read bytes."""
    tokenizer = load_tokenizer("bytes")
    found = {}
    for name in ("roberta", "llama", "bart"):
        torch.manual_seed(0)
        cls, config = MODELS[name]
        folder = tmp_path_factory.mktemp(name)
        model = cls(config().__class__.from_dict({**config().to_dict(), "vocab_size": 261}))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        found[name] = folder
    return found


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_maps_change_nothing_at_first():
    plain = build("llama")
    given = inputs("llama")
    results = []
    for maps in ({}, {"maps": True}):
        model = build("llama")
        model.load_state_dict(plain.state_dict())
        lln.hf.apply(model, "softmax", **maps)
        results.append(run(model, "llama", given))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", ["roberta", "llama"])
def test_maps_are_applied_per_head_before_the_core(name):
    model = build(name, "softmax", maps=True)
    core = next(m for m in model.modules() if isinstance(m, Attention))
    torch.nn.init.normal_(core.maps.query_weight)
    torch.nn.init.normal_(core.maps.key_bias)
    seen = {}
    core.maps.register_forward_hook(lambda maps, args, out: seen.update(raw=args, mapped=out))
    core.register_forward_pre_hook(lambda core, args: seen.update(core=args[:2]))
    run(model, name, inputs(name))
    (q, k), weights = seen["raw"], core.maps
    for head in range(q.shape[1]):
        expected = q[:, head] @ weights.query_weight[head].T + weights.query_bias[head]
        torch.testing.assert_close(seen["core"][0][:, head], expected)
    for head in range(k.shape[1]):
        expected = k[:, head] @ weights.key_weight[head].T + weights.key_bias[head]
        torch.testing.assert_close(seen["core"][1][:, head], expected)


def test_maps_are_saved(tmp_path):
    model = build("roberta", "lln_diag", maps=True, block_size=4)
    for name, weight in model.named_parameters():
        if ".maps." in name:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    given = inputs("roberta")
    torch.testing.assert_close(
        run(lln.hf.load(tmp_path), "roberta", given), run(model, "roberta", given), rtol=0, atol=0
    )


def test_maps_generate_with_states():
    cls = transformers.LlamaForCausalLM
    model = cls(transformers.LlamaConfig(**SIZES, **TEXT, num_key_value_heads=2)).eval()
    lln.hf.apply(model, "lln_diag", maps=True, block_size=4)
    for name, weight in model.named_parameters():
        if ".maps." in name:
            weight.data += 0.2 * torch.randn_like(weight)
    prompt = torch.randint(3, 50, (2, 6))
    lln.hf.calibrate(model, [prompt])
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    with_states = model.generate(prompt, **options)
    assert torch.equal(with_states, model.generate(prompt, use_cache=False, **options))


def test_calibrate():
    model = lln.hf.apply(build("llama"), "lln").train()
    given = inputs("llama")
    with pytest.warns(UncalibratedWarning):
        before = run(model, "llama", given)
    assert lln.hf.calibrate(model, [given, given["input_ids"]]) is model
    assert model.training
    assert not torch.equal(run(model, "llama", given), before)
    matchers = [m for m in model.modules() if isinstance(m, lln.matching.Matcher)]
    assert {int(matcher.batches) for matcher in matchers} == {2}


def test_calibrate_refuses():
    with pytest.raises(ValueError, match="batches is empty"):
        lln.hf.calibrate(build("llama", "lln"), [])
    with pytest.raises(ValueError, match="no LLN attention that stores statistics"):
        lln.hf.calibrate(build("roberta", "elu"), [inputs("roberta")])


@pytest.mark.parametrize("name", ["roberta", "llama", "bart", "modernbert"])
def test_beside_softmax_the_model_is_the_original(name):
    original, given = build(name), inputs(name)
    model = build(name)
    model.load_state_dict(original.state_dict())
    lln.hf.apply(model, "elu")
    with beside_softmax() as sums, torch.no_grad():
        torch.testing.assert_close(
            run(model, name, given), run(original, name, given), rtol=1e-5, atol=1e-5
        )
    cores = sum(isinstance(m, Attention) for m in model.modules())
    assert len(sums) == cores
    assert all(total[0] > 1e-4 * total[1] for total in sums.values())


def test_beside_softmax_finds_no_error_in_softmax():
    model, given = build("roberta", "softmax"), inputs("roberta")
    with beside_softmax() as sums:
        run(model, "roberta", given)
    assert all(total[0] == 0 for total in sums.values())


def test_beside_softmax_teaches_cores_alone():
    model, given = build("roberta", "lln_diag", maps=True, block_size=4), inputs("roberta")
    with beside_softmax(learn=True), torch.no_grad():
        run(model, "roberta", given)
    for name, weight in model.named_parameters():
        assert (weight.grad is not None) == ("attention_core." in name), name


def test_passages():
    text = passages(LINES, load_tokenizer("bytes"), 32)
    whole = load_tokenizer("bytes")("\n".join(LINES), add_special_tokens=False)["input_ids"]
    assert torch.cat([text.learned, text.held_out]).tolist() == whole
    lengths = set()
    for step in range(20):
        ids = text.batch(step, size=4, seed=0)
        assert torch.equal(ids, text.batch(step, size=4, seed=0))
        assert (ids[:, 0] == 0).all()  # <s>
        assert (ids[:, -1] == 2).all()  # </s>
        assert (ids[:, 1:-1] > 4).all()
        lengths.add(ids.shape[1])
    assert min(lengths) < 16
    assert 16 < max(lengths) <= 32
    assert not torch.equal(text.batch(0, size=4, seed=0), text.batch(0, size=4, seed=1))
    judged = torch.cat(text.judged(size=4))
    assert judged[:, 1:-1].flatten().tolist() == text.held_out[: judged.shape[0] * 30].tolist()


def test_passages_refuse_a_short_text():
    with pytest.raises(ValueError, match="need at least 640"):
        passages(["a word"], load_tokenizer("bytes"), 32)


def test_descent_goes_on_as_if_nothing_had_happened():
    target = torch.randn(5)

    def train(first, last, weight, state):
        descent = Descent([weight], 0.1, 10)
        descent.restore(state)
        for step in range(first, last):
            descent.step(step, lambda: (weight - target).pow(4).sum().backward())
        return descent.state()

    whole = torch.nn.Parameter(torch.zeros(5))
    train(0, 10, whole, {})
    parts = torch.nn.Parameter(torch.zeros(5))
    state = train(0, 4, parts, {})
    train(4, 10, parts, {name: x.clone() for name, x in state.items()})
    assert torch.equal(parts, whole)
    assert not torch.equal(whole, torch.zeros(5))


def test_rank_correlation():
    x, y = torch.randn(2, 50)
    assert rank_correlation(x, x + y) == pytest.approx(spearmanr(x, x + y).statistic)


@pytest.mark.parametrize("name", ["roberta", "llama", "bart"])
def test_stages(sources, name, tmp_path):
    told = []
    plan = Plan("lln", length=32, batch_size=4, calibration_batches=2, steps=30, rate=2e-2)
    done = convert(sources[name], LINES, plan, tell=told.append)
    assert [stage.name for stage in told] == ["swap", "calibration", "distillation"]
    assert told == done.stages
    assert all(len(stage.fidelity.errors) == len(done.layers) for stage in told)
    calibrated, distilled = (sum(stage.fidelity.errors) for stage in told[1:])
    assert distilled < 0.99 * calibrated
    for stage in told:
        assert 0 <= stage.fidelity.cosine <= 1
        assert -1 <= stage.fidelity.correlation <= 1
    done.save(tmp_path / "out", text="lines")
    report = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert report["text"] == "lines"
    given = inputs(name)
    again = lln.hf.load(tmp_path / "out")
    assert torch.equal(run(again, name, given), run(done.model, name, given))


def test_softmax_is_its_own_conversion(sources):
    done = convert(sources["roberta"], LINES, Plan("softmax", length=32, steps=0))
    (stage,) = done.stages
    assert stage.fidelity.cosine == pytest.approx(1)
    assert stage.fidelity.correlation == pytest.approx(1)
    assert max(stage.fidelity.errors) == 0


def test_finetuning_brings_the_whole_model_nearer(sources):
    plan = Plan("elu", length=32, batch_size=8, steps=2, finetune_steps=30, finetune_rate=3e-3)
    done = convert(sources["roberta"], LINES, plan)
    assert [stage.name for stage in done.stages] == ["swap", "distillation", "fine-tuning"]
    assert done.stages[2].fidelity.cosine > done.stages[1].fidelity.cosine


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [3, 11])  # in distillation, in fine-tuning
def test_an_interrupted_conversion_goes_on(sources, tmp_path, monkeypatch, stop):
    monkeypatch.setattr(work, "SAVE_EVERY", 0.0)
    plan = Plan(
        "lln_diag", {"block_size": 8}, 32, 4, calibration_batches=2, steps=8, finetune_steps=6
    )
    whole = convert(sources["roberta"], LINES, plan)
    steps = 0

    @contextmanager
    def bar(what, total):
        def advance():
            nonlocal steps
            steps += what != "calibration"
            if steps == stop:
                raise Interrupted

        yield advance

    state = tmp_path / "state.safetensors"
    with pytest.raises(Interrupted):
        convert(sources["roberta"], LINES, plan, unfinished=state, bar=bar)
    done = convert(sources["roberta"], LINES, plan, unfinished=state)
    assert [s.fidelity for s in done.stages] == [s.fidelity for s in whole.stages]
    for (name, found), expected in zip(
        done.model.state_dict().items(), whole.model.state_dict().values(), strict=True
    ):
        assert torch.equal(found, expected), name
    with pytest.raises(ValueError, match="with other steps, seed: delete it"):
        convert(
            sources["roberta"],
            LINES,
            Plan(**{**vars(plan), "steps": 9, "seed": 1}),
            unfinished=state,
        )
    with pytest.raises(ValueError, match="with other text: delete it"):
        convert(sources["roberta"], LINES[::-1], plan, unfinished=state)
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cannot go on from .*: delete it to start anew"):
        convert(sources["roberta"], LINES, plan, unfinished=state)


def test_an_unfinished_folder_is_not_there(sources, tmp_path, monkeypatch):
    done = convert(sources["roberta"], LINES, Plan("elu", length=32, steps=0))

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(done.tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="No space"):
        done.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_originals_that_cannot_be_converted(sources, tmp_path):
    images = tmp_path / "vit"
    cls, config = MODELS["vit"]
    cls(config()).save_pretrained(images)
    with pytest.raises(ValueError, match="ViTModel reads pixel_values, and only text"):
        convert(images, LINES, QUICK)
    ours = tmp_path / "ours"
    convert(sources["roberta"], LINES, Plan("elu", length=32, steps=0)).save(ours)
    with pytest.raises(ValueError, match="has an attention of lln already"):
        convert(ours, LINES, QUICK)
    with pytest.raises(ValueError, match="cannot convert"):
        convert(tmp_path / "nothing", LINES, QUICK)
    weights = ours / "model.safetensors"
    broken = tmp_path / "broken"
    build("roberta").save_pretrained(broken)
    (broken / "model.safetensors").write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ValueError, match="cannot convert") as refused:
        convert(broken, LINES, QUICK)
    assert "\n" not in str(refused.value)
