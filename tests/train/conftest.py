"""A corpus and an experiment that are small enough for tests."""

import json
import os
import subprocess
import sys

import pytest
import torch

from lln.train import Pretraining, read

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs")

EXPERIMENT = """
name = "tiny"
mixer = "lln_diag"

[data]
dataset = "{corpus}"
length = 32
tokenizer = "bytes"
eval_examples = 8

[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 32
hidden_dropout_prob = 0.1

[attention.lln_diag]
block_size = 8

[training]
steps = 12
batch_size = 4
learning_rate = 1e-2
clip = 1.0
log_every = 1
eval_every = 4
save_every = 3
"""


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """A file that describes an experiment; its runs go to the folder `runs` of the test."""
    folder = tmp_path_factory.mktemp("tiny")
    for split, first, number in (("train", 0, 60), ("valid", 7, 20)):
        lines = [
            " ".join(WORDS[(first + i * k) % len(WORDS)] for k in range(1, 9))
            for i in range(number)
        ]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    path = folder / "tiny.toml"
    path.write_text(EXPERIMENT.format(corpus=folder.as_posix()))
    return path


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def experiment(config, *overrides):
    return read(Pretraining, config, overrides)


def lines(folder, kind):
    """What `metrics.jsonl` says."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if line["kind"] == kind]


def command(*words, module="lln.cli"):
    """The command line, as a process that is not waited for."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        # Sums depend on how many threads share them.
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
