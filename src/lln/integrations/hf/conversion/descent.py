"""Training that can be left at any step and taken up again, with the same result."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 20  # steps


class Descent:
    """Adam, with a learning rate that rises, then falls to zero; it depends on the step alone.

    Args:
        parameters: what is trained.
        rate: the highest learning rate.
        steps: in all.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, steps: int) -> None:
        self.rate, self.steps = rate, steps
        self.optimizer = torch.optim.Adam(parameters, lr=rate)

    def step(self, step: int, add_gradients: Callable[[], object]) -> None:
        """Step number `step`, counted from 0."""
        rate = self.rate * min((step + 1) / WARM_UP, 1.0) * (1 - step / self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        add_gradients()
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """What `restore` needs, by name."""
        moments: dict[int, dict[str, Tensor]] = self.optimizer.state_dict()["state"]
        return {f"{i}.{key}": x for i, state in moments.items() for key, x in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Goes on where `state` was taken."""
        moments: dict[int, dict[str, Any]] = {}
        for name, x in state.items():
            i, _, key = name.partition(".")
            moments.setdefault(int(i), {})[key] = x
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
