"""Experiments from files and from the command line."""

from pathlib import Path
from typing import get_args

import pytest

from lln.train import Finetuning, Pretraining, Vision, read, read_arena
from lln.train.config import Run
from lln.train.inputs import ArenaTask
from lln.train.reading import runs
from train.conftest import experiment

SHIPPED = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


KINDS = {"pretrain": Pretraining, "finetune": Finetuning, "vit": Vision, "deit": Vision}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_file_is_an_experiment(path):
    kind = path.stem.split("-")[0]
    if kind == "lra":
        found = [read_arena(task, path) for task in get_args(ArenaTask)]
    else:
        found = [read(KINDS[kind], path)]
    for each in found:
        assert each.name == path.stem
        assert runs(each)


def test_presets_exist():
    names = {path.stem for path in SHIPPED}
    kinds = ("pretrain", "finetune", "vit", "lra")
    assert names >= {f"{kind}-{preset}" for kind in kinds for preset in ("smoke", "cpu", "paper")}


def test_overrides(config):
    found = experiment(
        config, "training.steps=7", "learning_rate=1", "compile=true", "name=42", "seed=0,3"
    )
    assert found.training.steps == 7
    assert found.training.learning_rate == 1.0
    assert found.training.compile is True
    assert (found.name, found.seed, found.mixer) == ("42", (0, 3), ("lln_diag",))


def test_mixers_with_options(config):
    wanted = "mixer=softmax,lln_diag,lln_diag+combine=learnable_ratio+block_size=16"
    found = runs(experiment(config, wanted, "seed=1,2", "attention.lln_diag.matching=paper"))
    assert [str(run.folder) for run in found[::2]] == [
        "runs/tiny/softmax-seed1",
        "runs/tiny/lln_diag-seed1",
        "runs/tiny/lln_diag+combine=learnable_ratio+block_size=16-seed1",
    ]
    assert found[2].mixer.options == {"block_size": 8, "matching": "paper"}
    ratio = {"block_size": 16, "matching": "paper", "combine": "learnable_ratio"}
    assert found[-1].mixer.options == ratio
    assert isinstance(found[-1], Run)
    assert found[-1].seed == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("steps", "'steps' is not of the form key=value"),
        ("stepz=3", "there is no key 'stepz'; valid: data.dataset, .*training.steps"),
        ("training.stepz=3", "there is no key 'training.stepz'; valid: "),
        ("model=3", "there is no key 'model'; valid: "),
        ("hidden_size=8,16", "model.hidden_size must be a whole number.*only mixer and seed take"),
        ("hidden_size=8.5", "model.hidden_size must be a whole number, got 8.5"),
        ("batch_size=true", "training.batch_size must be a whole number, got True"),
        ("batch_size=0", "batch_size must be positive, got 0"),
        ("compile=1", "training.compile must be true or false, got 1"),
        ("precision=fp8", "training.precision must be one of fp32, bf16, fp16, got 'fp8'"),
        ("norm=middle", "model.norm must be one of post, pre"),
        ("epochs=3", "either steps or epochs, and not both"),
        ("warmup=100", "warmup is a share of the steps"),
        ("log_every=2", "save_every must be a multiple of log_every, got 3 and 2"),
        ("log_every=3", "eval_every must be a multiple of log_every, got 4 and 3"),
        ("mask_probability=1", r"mask_probability must be in \(0, 1\)"),
        ("seed=a", "seed must be a whole number, got 'a'"),
        ("seed=0,-1", "seed must not be negative, got -1"),
        ("seed=1,1", "seed must name at least one, and each once"),
        ("mixer=softmaxx", "unknown attention 'softmaxx'; available: .*softmax"),
        (
            "mixer=lln+block_size=8",
            "'lln' has no option 'block_size'; valid: matching",
        ),
        ("mixer=lln+matching", r"options are given as lln\+option=value"),
        ("attention.lln_diag.colour=1", "'lln_diag' has no option 'colour'; valid: block_size"),
        ("attention.llm.colour=1", "unknown attention 'llm'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(config, overrides, message):
    with pytest.raises(ValueError, match=message) as said:
        experiment(config, overrides)
    assert "\n" not in str(said.value)
    assert config.name in str(said.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 3", "there is no key 'steps'; valid: attention, data, mixer, model, name, out"),
        ("[training]\nsteps = 3\nstep = 4", "there is no key 'training.step'; valid: accumulation"),
        ("data = 3", "data must be a table, got 3"),
        ("attention = 3", r"as \[attention.lln_diag\]"),
        ("[attention.llm]\na = 1", "unknown attention 'llm'"),
        ("a = ", "cannot read .*x.toml: Invalid value"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, message):
    (tmp_path / "x.toml").write_text(f'name = "x"\n{text}\n')
    with pytest.raises(ValueError, match=message):
        read(Pretraining, tmp_path / "x.toml")


def test_a_name_is_needed_and_so_is_a_file(tmp_path):
    (tmp_path / "x.toml").write_text("seed = 1\n")
    with pytest.raises(ValueError, match="name must be given"):
        read(Pretraining, tmp_path / "x.toml")
    with pytest.raises(ValueError, match=r"there is no file .*y.toml; beside it: .*x.toml"):
        read(Pretraining, tmp_path / "y.toml")
