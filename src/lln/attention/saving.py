"""What models that are saved and loaded by transformers need to know of attention."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from lln.matching import Matcher, Matching


def to_json(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a mechanism in a form that JSON keeps."""
    plain = {option: asdict(x) if isinstance(x, Matching) else x for option, x in options.items()}
    try:
        json.dumps(plain)
    except TypeError as error:
        raise ValueError(f"an option cannot be saved with the model: {error}") from None
    return plain


def from_json(plain: dict[str, Any]) -> dict[str, Any]:
    """The options of which `to_json` made `plain`."""
    options = dict(plain)
    matching = options.get("matching")
    if isinstance(matching, dict):
        fit = matching.get("fit")
        options["matching"] = Matching(**{**matching, "fit": None if fit is None else tuple(fit)})
    return options


@contextmanager
def real_float32() -> Iterator[None]:
    """While transformers builds models without memory, or in half precision, cores are neither.

    Their statistics are float32 at any precision of the model.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def finish_loading(model: nn.Module, part: str, info: Mapping[str, Any]) -> None:
    """Refuses weights of attention that a model lacks, and attention that the weights lack.

    transformers would drop the former, and fill the latter with whatever is in memory. So it does
    with buffers that are not saved.

    Args:
        model: as transformers loaded it.
        part: what the names of the weights of its attention contain.
        info: what transformers tells about loading.
    """
    for keys, problem in (
        ("missing_keys", "has attention by its config of which the weights lack"),
        ("unexpected_keys", "has other attention by its config, but the weights have"),
    ):
        found = sorted(key for key in info[keys] if part in key)
        if found:
            raise ValueError(
                f"{type(model).__name__} {problem} {found[0]} ({len(found)} such): load weights "
                "with the config that they were saved with"
            )
    for module in model.modules():
        if isinstance(module, Matcher):
            module.forget_newest()
