"""What a measure returns."""

import math
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Result:
    """Tensors with names."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON: None stands for what is not finite."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(x: Any) -> Any:
    if isinstance(x, Tensor):
        return _plain(x.tolist())
    if isinstance(x, list):
        return [_plain(item) for item in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
