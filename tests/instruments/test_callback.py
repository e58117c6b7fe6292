"""Attention through a training by the Trainer of transformers."""

import json
import subprocess
import sys

import pytest
import torch

import lln.instruments

transformers = pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

from lln.instruments.callback import MeasureCallback  # noqa: E402

HEADS = 2


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        ids = torch.randint(3, 40, (10,), generator=torch.Generator().manual_seed(i))
        keep = (torch.arange(10) < 10 - i % 4).long()
        return {"input_ids": ids, "attention_mask": keep, "labels": torch.tensor(i % 2)}


def train(folder, *callbacks, resume=None, model=None, **options):
    torch.manual_seed(0)
    if model is None:
        config = transformers.RobertaConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=16,
        )
        model = transformers.RobertaForSequenceClassification(config)
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=5,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **options,
    )
    trainer = transformers.Trainer(
        model=model, args=settings, train_dataset=Texts(), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return model


def read(folder):
    return [json.loads(line) for line in (folder / "attention.jsonl").read_text().splitlines()]


def test_rows_of_every_other_step_and_the_same_model(tmp_path):
    plain = train(tmp_path / "plain", gradient_accumulation_steps=2)
    measured = train(tmp_path / "measured", MeasureCallback(every=2), gradient_accumulation_steps=2)
    rows = read(tmp_path / "measured")
    places = [(row["step"], row["layer"], row["head"]) for row in rows]
    assert places == [(s, i, h) for s in (0, 2, 4) for i in range(2) for h in range(HEADS)]
    assert all(row["entropy"] > 0 and row["temperature"] > 0 for row in rows)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, measured.state_dict()[name]), name
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in measured.modules())


def test_a_resumed_training_goes_on_in_the_same_file(tmp_path):
    train(tmp_path, MeasureCallback(every=1))
    whole = (tmp_path / "attention.jsonl").read_text()
    (tmp_path / "attention.jsonl").write_text(whole + '{"step": 9, "cut off')
    train(tmp_path, MeasureCallback(every=1), resume=str(tmp_path / "checkpoint-2"))
    rows = read(tmp_path)
    assert [row["step"] for row in rows] == [s for s in range(5) for _ in range(2 * HEADS)]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, MeasureCallback(every=2))
    events = EventAccumulator(str(tmp_path / "runs" / "attention"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("entropy/layer 1")]
    assert [step for step, _ in found] == [0, 2, 4]
    rows = [row for row in read(tmp_path) if row["layer"] == 1 and row["step"] == 0]
    mean = sum(row["entropy"] for row in rows) / HEADS
    assert found[0][1] == pytest.approx(mean, rel=1e-5)


def test_our_encoder_logs_alpha_and_beta(tmp_path):
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(40, 16)
            self.mixer = lln.build("lln_diag", dim=16, heads=HEADS)
            self.head = torch.nn.Linear(16, 2)

        def forward(self, input_ids, attention_mask, labels):
            x = self.mixer(self.embed(input_ids), key_mask=attention_mask.bool())
            logits = self.head(x.mean(1))
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    train(tmp_path, MeasureCallback(every=4, layers=[0]), model=Encoder())
    rows = read(tmp_path)
    assert [row["step"] for row in rows] == [0, 0, 4, 4]
    assert all(row["alpha"] > 0 and row["beta"] > 0 for row in rows)


def test_an_error_in_the_model_leaves_no_hooks(tmp_path):
    config = transformers.RobertaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=16,
    )
    model = transformers.RobertaForSequenceClassification(config)
    model.roberta.encoder.layer[0].attention.self.query.weight.data.fill_(torch.nan)
    fetch = transformers.AttentionInterface.get_interface
    with pytest.raises(ValueError, match=r"layer 0 .* are not finite"):
        train(tmp_path, MeasureCallback(), model=model)
    assert transformers.AttentionInterface.get_interface is fetch
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_without_transformers_the_message_names_the_extra():
    script = """
import sys
import lln.instruments
assert "transformers" not in sys.modules
sys.modules["transformers"] = None
try:
    import lln.instruments.callback
except ImportError as error:
    assert "pip install 'lln[train]'" in str(error)
else:
    raise AssertionError("no error")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
