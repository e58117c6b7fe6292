"""Options that hold lists or names, and the errors that say what they should hold."""

import torch
import typer


def _items(values: list[str]) -> list[str]:
    """An option that may be repeated and may hold commas."""
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


def numbers(option: str, values: list[str]) -> tuple[int, ...]:
    """Positive whole numbers."""
    items = _items(values)
    if not items or not all(item.isdecimal() and int(item) > 0 for item in items):
        raise typer.BadParameter(
            f"{', '.join(values)!r} is not a list of positive whole numbers such as 512,2048",
            param_hint=f"'{option}'",
        )
    return tuple(dict.fromkeys(map(int, items)))


def choices(option: str, values: list[str], valid: list[str]) -> tuple[str, ...]:
    """Some of the valid names."""
    items = _items(values)
    unknown = [item for item in items if item not in valid]
    if unknown or not items:
        raise typer.BadParameter(
            f"{', '.join(unknown or values)!r} is not one of {', '.join(valid)}",
            param_hint=f"'{option}'",
        )
    return tuple(dict.fromkeys(items))


def find_device(name: str) -> str:
    """A device that this machine has."""
    usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if name not in usable and not (name == "cuda" and len(usable) > 1):
        raise typer.BadParameter(
            f"{name!r} is not one of {', '.join(usable)}", param_hint="'--device'"
        )
    return name
