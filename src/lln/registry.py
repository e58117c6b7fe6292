"""The names by which attention mechanisms are found and built.

`@register(name, ...)` on a class is all that a mechanism needs: tests, benchmarks and `lln list` go
over the registry.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

T = TypeVar("T", bound=type[nn.Module])

CONTEXT = ("max_len", "layer", "layers")
"""What a model knows of a mechanism's place in it; passed to the classes that want to know."""


@dataclass(frozen=True)
class Entry:
    """A registered mechanism.

    Attributes:
        name: its name, which is also its module's.
        cls: its class.
        paper: who published it.
        complexity: in the sequence length N.
        causal: it has a causal form.
        row_stochastic: it averages values with weights that are non-negative and sum to 1.
    """

    name: str
    cls: type[nn.Module]
    paper: str
    complexity: str
    causal: bool
    row_stochastic: bool

    @property
    def kind(self) -> str:
        """`core` (of q, k, v) or `mixer` (of x)."""
        return str(self.cls.kind)  # type: ignore[attr-defined]

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return inspect.cleandoc(self.cls.__doc__ or "").split("\n")[0]

    @property
    def options(self) -> list[str]:
        """What may be given to `build` beside the sizes."""
        sizes = {"self", "heads", "head_dim", "dim", *CONTEXT}
        return [name for name in inspect.signature(self.cls).parameters if name not in sizes]


_entries: dict[str, Entry] = {}


def register(
    name: str, *, paper: str, complexity: str, causal: bool = True, row_stochastic: bool = True
) -> Callable[[T], T]:
    """Registers the decorated class under `name`; arguments as in `Entry`."""

    def decorate(cls: T) -> T:
        if name in _entries:
            raise ValueError(f"{name!r} is registered already, by {_entries[name].cls.__name__}")
        cls.name = name  # type: ignore[attr-defined]
        _entries[name] = Entry(name, cls, paper, complexity, causal, row_stochastic)
        return cls

    return decorate


def available() -> list[str]:
    """The names of all registered mechanisms."""
    return list(_entries)


def entry(name: str) -> Entry:
    """What is registered under `name`."""
    if name not in _entries:
        raise ValueError(f"unknown attention {name!r}; available: {', '.join(available())}")
    return _entries[name]


def parse(label: str) -> tuple[str, dict[str, Any]]:
    """The name and the options that one word holds: `lln_diag+block_size=32+combine=average`.

    Values are read as JSON, and as text where they are none.
    """
    name, *assignments = label.split("+")
    found, options = entry(name), {}
    for assignment in assignments:
        option, equals, text = assignment.partition("=")
        if not equals or not option:
            raise ValueError(f"{label!r}: options are given as {name}+option=value")
        try:
            options[option] = json.loads(text)
        except ValueError:
            options[option] = text
    check_options(found, options)
    return name, options


def build_core(
    name: str, *, heads: int, head_dim: int, max_len: int | None = None, **options: Any
) -> nn.Module:
    """Builds a core, called as `core(q, k, v, key_mask=…, causal=…)` on `(B, H, N, D)`.

    Args:
        name: one of `available()`.
        heads: number of query heads.
        head_dim: D.
        max_len: the longest sequence, for mechanisms that have to know it.
        options: the mechanism's own; unknown ones are errors.
    """
    found = entry(name)
    if found.kind != "core":
        raise ValueError(f"{name!r} is a {found.kind}, not a core: use build(), which takes x")
    context = {"max_len": max_len}
    return _construct(found, options, context, heads=heads, head_dim=head_dim)


def build(
    name: str,
    *,
    dim: int,
    heads: int,
    max_len: int | None = None,
    layer: int | None = None,
    layers: int | None = None,
    **options: Any,
) -> nn.Module:
    """Builds a mixer, called as `mixer(x, key_mask=…, causal=…)` on `(B, N, dim)`.

    A core is wrapped in `MultiHead`, which adds the projections.

    Args:
        name: one of `available()`.
        dim: features per token, a multiple of `heads`.
        heads: number of heads.
        max_len: the longest sequence, for mechanisms that have to know it.
        layer: which of the model's `layers` this is, counted from 0, for mechanisms that differ
            between layers.
        layers: how many there are.
        options: the mechanism's own; unknown ones are errors.
    """
    found = entry(name)
    if heads < 1 or dim % heads:
        raise ValueError(f"dim must be a multiple of heads, got dim={dim}, heads={heads}")
    if found.kind == "core":
        core = build_core(name, heads=heads, head_dim=dim // heads, max_len=max_len, **options)
        return core.as_mixer(dim)  # type: ignore[operator,no-any-return]
    context = {"max_len": max_len, "layer": layer, "layers": layers}
    return _construct(found, options, context, dim=dim, heads=heads)


def _construct(
    found: Entry, options: dict[str, Any], context: dict[str, int | None], **sizes: int
) -> nn.Module:
    check_options(found, options)
    wanted = inspect.signature(found.cls).parameters
    known = {name: value for name, value in context.items() if name in wanted and value is not None}
    return found.cls(**sizes, **known, **options)


def check_options(found: Entry, options: dict[str, Any]) -> None:
    """Raises if a mechanism has no such options, and lists those that it has."""
    unknown = sorted(set(options) - set(found.options))
    if unknown:
        raise ValueError(
            f"{found.name!r} has no option {', '.join(map(repr, unknown))}; "
            f"valid: {', '.join(found.options) or 'none'}"
        )
