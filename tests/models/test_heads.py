"""What the heads predict, and what they are told that they should have."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

pytest.importorskip("transformers", reason="needs the extra `train`")

from models.encoders import VOCABULARY, build, some_labels, tokens


def test_the_loss_is_that_of_the_labels_in_training_and_evaluation():
    model, ids = build("EncoderForMaskedLM", hidden_dropout_prob=0.0), tokens()
    labels = some_labels(ids)
    evaluated, trained = model(ids, labels=labels), model.train()(ids, labels=labels)
    expected = F.cross_entropy(evaluated.logits.view(-1, VOCABULARY), labels.view(-1))
    assert_close(evaluated.loss, expected)
    assert_close(trained.loss, expected)
    assert trained.logits is None
    assert model(ids).logits.shape == (*ids.shape, VOCABULARY)
    gradients = []
    for mode in (True, False):
        model.train(mode).zero_grad()
        model(ids, labels=labels).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert_close(gradients[0], gradients[1])


def test_in_training_the_vocabulary_is_computed_for_labels_alone():
    model, ids = build("EncoderForMaskedLM").train(), tokens()
    shapes = []
    model.lm_head.register_forward_hook(lambda *call: shapes.append(call[2].shape))
    labels = some_labels(ids)
    model(ids, labels=labels)
    assert shapes == [((labels != -100).sum(), VOCABULARY)]


@pytest.mark.parametrize("training", [False, True])
def test_nothing_to_predict_costs_nothing(training):
    model, ids = build("EncoderForMaskedLM").train(training), tokens()
    loss = model(ids, labels=torch.full_like(ids, -100)).loss
    assert loss == 0
    loss.backward()
    assert all(not weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize("training", [False, True])
def test_parts_of_a_batch_add_up(training):
    model = build("EncoderForMaskedLM", hidden_dropout_prob=0.0).train(training)
    ids = tokens(4)
    labels = some_labels(ids)
    count = (labels != -100).sum()
    whole = model(ids, labels=labels).loss
    for items in (count, count.item()):
        parts = [
            model(ids[part], labels=labels[part], num_items_in_batch=items).loss
            for part in (slice(1), slice(1, 4))
        ]
        assert_close(sum(parts), whole)


CLASSES, NUMBERS = torch.tensor([2, 0, 1, 2]), torch.tensor([0.5, -1.0, 2.0, 0.0])
SEVERAL = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
PROBLEMS = {
    "classes": (3, None, CLASSES, F.cross_entropy),
    "a number": (1, None, NUMBERS, lambda x, y: F.mse_loss(x[:, 0], y)),
    "a number in a column": (1, None, NUMBERS[:, None], F.mse_loss),
    "numbers": (3, "regression", 2 * SEVERAL - 1.5, F.mse_loss),
    "whole numbers": (1, None, CLASSES, lambda x, y: F.mse_loss(x[:, 0], y.float())),
    "several classes": (3, None, SEVERAL, F.binary_cross_entropy_with_logits),
    "several, as integers": (
        3,
        "multi_label_classification",
        SEVERAL.long(),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.float()),
    ),
}


@pytest.mark.parametrize(
    ("num_labels", "problem_type", "labels", "expected"), PROBLEMS.values(), ids=PROBLEMS
)
def test_problems(num_labels, problem_type, labels, expected):
    model = build(
        "EncoderForSequenceClassification", num_labels=num_labels, problem_type=problem_type
    )
    ids = tokens(4)
    out = model(ids, labels=labels)
    assert out.logits.shape == (4, num_labels)
    assert_close(out.loss, expected(out.logits, labels))
    parts = [
        model(ids[part], labels=labels[part], num_items_in_batch=labels.numel()).loss
        for part in (slice(1), slice(1, 4))
    ]
    assert_close(sum(parts), out.loss)
    assert model.config.problem_type == problem_type


def test_half_precision_has_an_exact_loss():
    model = build("EncoderForMaskedLM", hidden_dropout_prob=0.0)
    ids = tokens(64)  # the sum of their losses is beyond float16
    exact = model(ids, labels=ids).loss
    half = model.half().train()(ids, labels=ids).loss
    assert half.dtype == torch.float32
    assert exact * ids.numel() > 1000
    assert_close(half, exact, rtol=0.01, atol=0)


def test_dropout_of_the_classifier():
    model = build("EncoderForSequenceClassification")
    assert model.classifier.dropout.p == 0.1
    model = build("EncoderForSequenceClassification", classifier_dropout=0.0)
    assert model.classifier.dropout.p == 0.0
