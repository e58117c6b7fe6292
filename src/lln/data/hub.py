"""Data sets of the Hugging Face hub, only where a name asks for it."""

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetNotFoundError

from lln.data.locating import SPLITS


def load(name: str, split: str) -> Dataset:
    """Opens `hub:owner/name` or `hub:owner/name:config`."""
    _, path, *config = name.split(":")
    if not path or len(config) > 1:
        raise ValueError(f"{name!r} is no name: expected hub:owner/name or hub:owner/name:config")
    try:
        parts = load_dataset(path, *config)
    except (OSError, ValueError, DatasetNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name!r} did not come from the hub ({reason}): check the name and the network, "
            "or give the path of a local copy"
        ) from error
    for written in SPLITS.get(split, ()):
        if written in parts:
            return parts[written]
    raise ValueError(f"{name!r} has no split {split!r}: it has {', '.join(parts)}")
