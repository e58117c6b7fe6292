"""Experiments: train encoders that differ in their mixer alone, and lose nothing on the way.

Example:
    experiment = read(Pretraining, "experiments/pretrain-smoke.toml", ["mixer=softmax,lln_diag"])
    pretrain(experiment)
"""

import sys
from importlib.util import find_spec

if _missing := [
    package
    for package in (
        *("transformers", "accelerate", "datasets", "tensorboard", "rich"),
        *(["tomli"] if sys.version_info < (3, 11) else []),
    )
    if find_spec(package) is None
]:
    raise ModuleNotFoundError(f"lln.train needs {_missing[0]}: pip install 'lln[train]'")

from lln.train.config import Arena, Finetuning, Pretraining, Vision
from lln.train.reading import read, read_arena
from lln.train.sweep import finetune, pretrain, train_lra, train_vit

__all__ = [
    "Arena",
    "Finetuning",
    "Pretraining",
    "Vision",
    "finetune",
    "pretrain",
    "read",
    "read_arena",
    "train_lra",
    "train_vit",
]
