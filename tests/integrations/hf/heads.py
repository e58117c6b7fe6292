"""Tiny RoBERTa, ViT and Llama with heads and losses, for the checks that transformers makes."""

import re

import torch
import transformers as hf

import lln
import lln.hf
from integrations.hf.models import MODELS, VOCABULARY, inputs

HEADS = {
    "roberta": (hf.RobertaForMaskedLM, {}),
    "vit": (hf.ViTForImageClassification, {"num_labels": 3}),
    # Nothing but its length ends a text.
    "llama": (hf.LlamaForCausalLM, {"bos_token_id": None, "eos_token_id": None}),
}
CORES = {"lln": {}, "lln_diag": {"block_size": 4}, "hedgehog": {}}
EVERY = [(name, core) for name in HEADS for core in CORES]
SOME = [("roberta", "lln_diag"), ("vit", "hedgehog"), ("llama", "lln")]
"""Each once, for checks that do not depend on the pair."""
TEXT = [(name, core) for name, core in EVERY if name != "vit"]


def config_of(name, **options):
    return MODELS[name][1](**{**HEADS[name][1], **options})


def headed(name, core, head=None, **options):
    """A model with a core, for evaluation; options are those of its configuration."""
    torch.manual_seed(0)
    model = (head or HEADS[name][0])(config_of(name, **options)).eval()
    lln.hf.apply(model, core, **CORES.get(core, {}))
    for part in model.modules():
        if isinstance(part, lln.Attention):
            for weight in part.parameters():  # such as no initialisation gives
                torch.nn.init.normal_(weight, std=0.3)
    return calibrated(model, name)


def calibrated(model, name):
    """With the statistics of a batch, if it stores any."""
    if any(hasattr(part, "stored") for part in model.modules()):
        with lln.matching.calibrating(model), torch.no_grad():
            model(**inputs(name))
    return model


def labelled(name):
    """Arguments that give a loss."""
    arguments = inputs(name)
    labels = arguments.get("input_ids", torch.tensor([0, 2]))
    return {**arguments, "labels": labels}


@torch.no_grad()
def logits(model, arguments):
    return model(**arguments).logits


def without_dropout(model):
    """Or two passes in training would differ."""
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0
    return model


def prompts():
    """Three prompts, two of them padded on the left."""
    ids = torch.randint(3, VOCABULARY, (3, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(10) >= torch.tensor([[0], [3], [7]])
    return {"input_ids": ids.where(mask, 1), "attention_mask": mask.long()}


def assert_covered(module):
    """A module has the tests that its docstring lists, and no others."""
    listed = re.findall(r"^- (test_\w+):", module["__doc__"], re.MULTILINE)
    tests = {name for name in module if name.startswith("test_")}
    assert tests == {*listed, "test_the_list_is_covered"}
