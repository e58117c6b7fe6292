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

from lln.train.config import Finetuning, Pretraining
from lln.train.reading import read
from lln.train.sweep import finetune, pretrain

__all__ = ["Finetuning", "Pretraining", "finetune", "pretrain", "read"]
