"""Checkpoints are complete or absent."""

import pytest

from lln.train.checkpoints import CheckpointWarning, checkpoints, damage, last_good, publish


def write(folder, step):
    """What the Trainer would have written, published."""
    unfinished = folder / ".unfinished" / f"checkpoint-{step}"
    (unfinished / "part").mkdir(parents=True)
    (unfinished / "weights").write_text(f"weights of {step}")
    (unfinished / "part/state").write_text(f"state of {step}")
    (unfinished / "training_args.bin").write_text("pickled")
    return publish(unfinished, folder, keep=2)


def test_the_newest_ones_are_kept(tmp_path):
    for step in (8, 9, 10):
        assert damage(write(tmp_path, step)) is None
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    assert last_good(tmp_path) == tmp_path / "checkpoint-10"
    assert not (tmp_path / "checkpoint-10/training_args.bin").exists()
    assert not list((tmp_path / ".unfinished").iterdir())


def test_what_is_not_published_does_not_count(tmp_path):
    write(tmp_path, 1)
    (tmp_path / ".unfinished/checkpoint-2").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    assert last_good(tmp_path) == tmp_path / "checkpoint-1"
    assert last_good(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda path: (path / "weights").write_text("weights of 3"), "weights has changed"),
        (lambda path: (path / "part/state").write_text("state"), "part/state has changed"),
        (lambda path: (path / "part/state").unlink(), "state is missing"),
        (lambda path: (path / "files.json").unlink(), "files.json is missing"),
        (lambda path: (path / "files.json").write_text("{"), "files.json cannot be read"),
        (lambda path: (path / "files.json").write_text("[]"), "files.json cannot be read"),
    ],
)
def test_damage_is_found_named_and_passed_over(tmp_path, harm, problem):
    write(tmp_path, 1)
    harm(write(tmp_path, 2))
    with pytest.warns(CheckpointWarning, match=rf"\({problem}.*\); trying checkpoint-1 instead"):
        assert last_good(tmp_path) == tmp_path / "checkpoint-1"
    assert damage(write(tmp_path, 2)) is None  # written anew in the same place
