"""From a TOML file and `key=value` overrides to an experiment; unknown keys are errors."""

import dataclasses
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from lln.registry import check_options, entry, parse
from lln.train.config import AnyExperiment, Arena, Mixer, Run
from lln.train.inputs import ArenaTask

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

E = TypeVar("E", bound=AnyExperiment)

NOTHING = "none"  # how a file or the command line says None, which TOML does not know
KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def read(cls: type[E], path: Path | str, overrides: Sequence[str] = ()) -> E:
    """The experiment that a file describes.

    Args:
        cls: `Pretraining`, `Finetuning` or `Vision`.
        path: a TOML file.
        overrides: such as `training.steps=100`, `steps=100` or `mixer=softmax,lln+matching=paper`.

    Raises:
        ValueError: says in one line which key is wrong, and what would be right.
    """
    return _experiment(cls, Path(path), _load(Path(path)), overrides)


def read_arena(task: str, path: Path | str, overrides: Sequence[str] = ()) -> Arena:
    """The experiment that a file describes for a task of the Long Range Arena.

    What the file says in the tables of a task, such as `[listops.training]`, is laid over what it
    says for all of them.

    Args:
        task: `listops`, `text`, `retrieval`, `image`, `pathfinder` or `pathx`.
        path: a TOML file.
        overrides: as in `read`; they come last.
    """
    tasks = get_args(ArenaTask)
    if task not in tasks:
        raise ValueError(f"{task!r} is not one of the tasks {', '.join(tasks)}")
    if other := [override for override in overrides if override.startswith("task=")]:
        raise ValueError(f"{other[0]}: name the task before the file, not after it")
    table = _load(Path(path))
    own = {name: table.pop(name, {}) for name in tasks}
    for name, content in own.items():
        if not isinstance(content, dict):
            raise ValueError(f"{path}: {name} must be a table, got {content!r}")
    table = {**_laid_over(table, own[task]), "task": task}
    return _experiment(Arena, Path(path), table, overrides)


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = sorted(str(file) for file in path.parent.glob("*.toml"))
        raise ValueError(
            f"there is no file {path}; beside it: {', '.join(beside) or 'no .toml file'}"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _experiment(cls: type[E], path: Path, table: dict[str, Any], overrides: Sequence[str]) -> E:
    try:
        for override in overrides:
            _apply(table, cls, override)
        experiment: E = _build(cls, table, "")
        runs(experiment)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return experiment


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both tables, and where they say different things what `above` says."""
    both = {**below, **above}
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            both[key] = _laid_over(below[key], value)
    return both


def runs(experiment: AnyExperiment) -> list[Run]:
    """One for each mixer and seed."""
    for name in experiment.attention:
        entry(name)
    mixers = [_mixer(label, experiment.attention) for label in experiment.mixer]
    return [Run(experiment, mixer, seed) for mixer in mixers for seed in experiment.seed]


def _mixer(label: str, attention: dict[str, dict[str, Any]]) -> Mixer:
    """The mechanism of a label, with its options and those that all runs with it have."""
    if "/" in label:
        raise ValueError(f"mixer {label!r} names a folder, and / would name one inside another")
    name, own = parse(label)
    options = {**attention.get(name, {}), **own}
    check_options(entry(name), options)
    return Mixer(name, options, label)


def _apply(table: dict[str, Any], cls: type, override: str) -> None:
    """Writes one `key=value` into the table that was read."""
    key, equals, text = override.partition("=")
    path, text = _find(key.strip(), cls), text.strip()
    if not equals:
        raise ValueError(f"{override!r} is not of the form key=value")
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ValueError(f"{part} must be a table, got {table!r}")
    hint = _places(cls).get(".".join(path))
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        table[path[-1]] = [item if kind is str else _value(item) for item in text.split(",")]
    else:
        table[path[-1]] = text if str in (hint, *get_args(hint)) else _value(text)


def _find(key: str, cls: type) -> list[str]:
    """The place that `key` names, or the only one of which it is the last part."""
    places = _places(cls)
    path = key.split(".")
    if key in places or (path[0] == "attention" and len(path) == 3):
        return path
    found = [place for place in places if place.endswith(f".{key}")]
    if len(found) > 1:
        raise ValueError(f"{key!r} is ambiguous: {' or '.join(found)}")
    if not found:
        raise ValueError(f"there is no key {key!r}; valid: {', '.join(sorted(places))}")
    return found[0].split(".")


def _places(cls: Any, prefix: str = "") -> dict[str, Any]:
    """Every key that holds a value, with dots, and its type."""
    places: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            places |= _places(hint, f"{prefix}{field.name}.")
        elif get_origin(hint) is not dict:
            places[prefix + field.name] = hint
    return places


def _value(text: str) -> Any:
    """As TOML reads it, and text without quotes as text."""
    text = text.strip()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _build(cls: Any, table: dict[str, Any], prefix: str) -> Any:
    fields = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(table) - fields)
    if unknown:
        names = ", ".join(repr(prefix + key) for key in unknown)
        raise ValueError(f"there is no key {names}; valid: {', '.join(sorted(fields))}")
    hints = get_type_hints(cls)
    missing = [f.name for f in dataclasses.fields(cls) if _required(f) and f.name not in table]
    if missing:
        raise ValueError(f"{', '.join(prefix + name for name in missing)} must be given")
    values = {key: _convert(value, hints[key], prefix + key) for key, value in table.items()}
    return cls(**values)


def _required(field: "dataclasses.Field[Any]") -> bool:
    nothing = dataclasses.MISSING
    return field.default is nothing and field.default_factory is nothing


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value, if it is of the type."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{key} must be a table, got {value!r}")
        return _build(hint, value, f"{key}.")
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        items = value if isinstance(value, list) else [value]
        if not items or len(set(map(str, items))) < len(items):
            raise ValueError(f"{key} must name at least one, and each once, got {value!r}")
        return tuple(_convert(item, inner[0], key) for item in items)
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
            raise ValueError(f"{key} must hold a table for each mechanism, as [attention.lln_diag]")
        return value
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{key} must be one of {', '.join(inner)}, got {value!r}")
        return value
    if origin is types.UnionType:
        if value == NOTHING:
            return None
        (hint,) = (option for option in inner if option is not type(None))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        lists = "; only mixer and seed take lists" if "," in str(value) else ""
        raise ValueError(f"{key} must be {KINDS[hint]}, got {value!r}{lists}")
    return value
