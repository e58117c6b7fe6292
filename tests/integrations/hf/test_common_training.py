"""transformers' generic checks of how a model is trained, with our attention in it.

The rest of `test_common_modeling.py`: checks of `ModelTesterMixin`, each with a test of the same
name.

- test_problem_types: regression, one label, many labels
- test_training: every parameter gets a gradient
- test_training_gradient_checkpointing: with and without reentrance, the same gradients
- test_gradient_checkpointing_enable_disable: on and off again
- test_enable_input_require_grads: gradients reach the embeddings' output
- test_training_overfit: a batch can be learnt
"""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the extra `train`")

from integrations.hf.heads import (  # noqa: E402
    EVERY,
    SOME,
    TEXT,
    assert_covered,
    headed,
    labelled,
    without_dropout,
)
from integrations.hf.models import inputs  # noqa: E402

close = torch.testing.assert_close
every = pytest.mark.parametrize(("name", "core"), EVERY)
some = pytest.mark.parametrize(("name", "core"), SOME)
text = pytest.mark.parametrize(("name", "core"), TEXT)


def test_the_list_is_covered():
    assert_covered(globals())


@pytest.mark.parametrize("core", ["lln", "lln_diag", "hedgehog"])
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", torch.tensor([0.5, -0.5])),
        ("single_label_classification", torch.tensor([0, 2])),
        ("multi_label_classification", torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])),
    ],
)
@pytest.mark.parametrize("name", ["roberta", "llama", "vit"])
def test_problem_types(name, core, problem, labels):
    heads = {
        "roberta": transformers.RobertaForSequenceClassification,
        "llama": transformers.LlamaForSequenceClassification,
        "vit": transformers.ViTForImageClassification,
    }
    options = {"num_labels": 1 if problem == "regression" else 3, "problem_type": problem}
    model = headed(name, core, heads[name], **options)
    loss = model(**inputs(name), labels=labels).loss
    loss.backward()
    assert loss.isfinite()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())


def gradients(model, arguments):
    model.zero_grad()
    model(**arguments).loss.backward()
    return {path: w.grad.clone() for path, w in model.named_parameters() if w.grad is not None}


@every
def test_training(name, core):
    model = headed(name, core).train()
    found = gradients(model, labelled(name))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(x.isfinite().all() for x in found.values())
    assert any(x.any() for path, x in found.items() if "attention" in path)


@every
@pytest.mark.parametrize("reentrant", [False, True])
def test_training_gradient_checkpointing(name, core, reentrant):
    model = without_dropout(headed(name, core)).train()
    arguments = labelled(name)
    expected = gradients(model, arguments)
    if reentrant:  # it asks for an input with gradients
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found = gradients(model, arguments)
    assert found.keys() == expected.keys()
    for path, gradient in expected.items():
        close(found[path], gradient, rtol=0, atol=1e-6)


@some
def test_gradient_checkpointing_enable_disable(name, core):
    model = headed(name, core)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    model.gradient_checkpointing_disable()
    assert not any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


@text
def test_enable_input_require_grads(name, core):
    model = headed(name, core).requires_grad_(False)
    model.enable_input_require_grads()
    states = model(**inputs(name), output_hidden_states=True).hidden_states
    assert states[0].requires_grad
    assert states[-1].requires_grad


@some
def test_training_overfit(name, core):
    model, arguments = headed(name, core), labelled(name)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        adam.zero_grad()
        loss = model(**arguments).loss
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
