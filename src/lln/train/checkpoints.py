"""Checkpoints that are complete or absent.

The Trainer writes into a hidden folder beside the checkpoints. Once everything is on the disk, a
list of the files and their checksums is added, and the folder gets its name in one step. Only then
are older checkpoints removed, so that a good one is there at every moment.
"""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

STAGING = ".unfinished"
MANIFEST = "files.json"
PREFIX = "checkpoint-"


class CheckpointWarning(UserWarning):
    """A checkpoint cannot be used."""


def publish(unfinished: Path, folder: Path, *, keep: int) -> Path:
    """Turns a folder that was written into a checkpoint of `folder`, and removes old ones.

    Args:
        unfinished: the written files; its name is that of the checkpoint.
        folder: of the run.
        keep: so many checkpoints.
    """
    sums = {path.relative_to(unfinished).as_posix(): _checksum(path) for path in _files(unfinished)}
    (unfinished / MANIFEST).write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")
    final = folder / unfinished.name
    settle(unfinished, final)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def settle(unfinished: Path, final: Path) -> None:
    """Gives a folder that was written its name, once all of it is on the disk."""
    for path in (*_files(unfinished), unfinished):
        _to_disk(path)
    if final.exists():
        shutil.rmtree(final)
    os.replace(unfinished, final)
    _to_disk(final.parent)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, the oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0)


def step_of(checkpoint: Path) -> int | None:
    """The number of steps after which it was written."""
    number = checkpoint.name.removeprefix(PREFIX)
    return int(number) if number.isdecimal() else None


def last_good(folder: Path) -> Path | None:
    """The newest checkpoint that is as it was written; warns of newer ones that are not."""
    found = checkpoints(folder)
    for place in range(len(found) - 1, -1, -1):
        problem = damage(found[place])
        if problem is None:
            return found[place]
        instead = found[place - 1].name if place else "the beginning"
        warnings.warn(
            f"{found[place]} cannot be used ({problem}); trying {instead} instead",
            CheckpointWarning,
            stacklevel=2,
        )
    return None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        sums = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        for name, expected in sums.items():
            if _checksum(checkpoint / name) != expected:
                return f"{name} has changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def _files(folder: Path) -> list[Path]:
    """All files of a folder, but for one that nobody should read.

    The Trainer adds its arguments, pickled, to what it saves.
    """
    (folder / "training_args.bin").unlink(missing_ok=True)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _to_disk(path: Path) -> None:
    """Waits until the file, or what a folder lists, would survive a power cut."""
    if os.name == "nt":  # Windows syncs only what is open for writing, and no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
