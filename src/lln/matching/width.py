"""From the spread of softmax's scores to the σ̃ that makes LLN match it (Eq. 10, A.7)."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from lln.matching.calibration import (
    SCORE_STD_MIN,
    SCORE_STD_POINTS,
    STEPS_PER_DOUBLING,
    calibration_for,
)

# The constants of the authors' published code; they suit D = 64 and scores of unit variance.
AUTHORS_FIT = (0.14855178144710912, -0.35487039130661086)

Target = Literal["entropy", "variance", "linear"]
Scores = Literal["exact", "independent"]
Source = Literal["auto", "sequence", "batch", "frozen", "running"]


@dataclass(frozen=True)
class Matching:
    """How α and β are found.

    Attributes:
        target: what LLN shall have in common with softmax attention: the mean `entropy` of its
            rows, the `variance` of log P, or that variance by the paper's `linear` fit.
        scores: the variance of softmax's scores: `exact`, or σ_q² σ_k² as if the elements of q
            and k were `independent` (the paper).
        center_keys: subtract the mean key first. Softmax attention is invariant to it; LLN, whose
            analysis assumes a mean of zero, is not.
        statistics: where the moments of q and k come from. `sequence`: each sequence and head by
            itself; `batch`: the whole batch at once, as the authors do, which makes sequences
            depend on each other; `frozen`: stored in the module, see `calibrating`; `running`:
            averages over earlier training steps, frozen in evaluation; `auto`: `sequence`, or
            `frozen` where attention is causal and `sequence` would see the future.
        fit: a and b for the linear target; None = calibrated for the head dimension.
        momentum: weight of the newest step in `running` averages.
        fixed: α and β themselves, with nothing measured and no key moved, as in Figure 10a. It
            leaves nothing to choose above: `resolve` makes such a matching of a number.
    """

    target: Target = "entropy"
    scores: Scores = "exact"
    center_keys: bool = True
    statistics: Source = "auto"
    fit: tuple[float, float] | None = None
    momentum: float = 0.1
    fixed: float | None = None

    def __post_init__(self) -> None:
        for name, choices in (("target", Target), ("scores", Scores), ("statistics", Source)):
            value, valid = getattr(self, name), get_args(choices)
            if value not in valid:
                raise ValueError(
                    f"matching.{name} must be one of {', '.join(valid)}, got {value!r}"
                )
        if self.fit is not None and self.target != "linear":
            raise ValueError(f"matching.fit belongs to target='linear', got {self.target!r}")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"matching.momentum must be in (0, 1], got {self.momentum}")
        if self.fixed is not None:
            self._check_fixed(self.fixed)

    def _check_fixed(self, fixed: float) -> None:
        if not 0 < fixed < math.inf:
            raise ValueError(f"matching: α = β must be positive and finite, got {fixed}")
        if replace(self, fixed=None) != Matching(center_keys=False, statistics="frozen"):
            raise ValueError(
                "matching.fixed measures nothing and takes no settings beside it: give the number "
                f"itself, matching={fixed}"
            )


PRESETS = {
    "entropy": Matching(),
    "paper": Matching(
        target="linear",
        scores="independent",
        center_keys=False,
        statistics="batch",
        fit=AUTHORS_FIT,
    ),
    "frozen": Matching(statistics="frozen"),
}


def resolve(matching: str | float | Matching) -> Matching:
    """A preset by its name, a number for α = β, or the dataclass itself."""
    if isinstance(matching, Matching):
        return matching
    if isinstance(matching, (int, float)) and not isinstance(matching, bool):
        return Matching(center_keys=False, statistics="frozen", fixed=float(matching))
    if not isinstance(matching, str) or matching not in PRESETS:
        raise ValueError(
            f"matching must be one of {', '.join(PRESETS)}, a number for α = β, or a Matching, "
            f"got {matching!r}"
        )
    return PRESETS[matching]


class Curve(NamedTuple):
    """σ̃ as a function of σ_sm, for several numbers of keys.

    Attributes:
        log_lengths: `(L,)`.
        values: `(L, points)` log σ̃ over the grid of σ_sm, or `(L, 2)` a and b.
        columns: `(L, points)` entropy of the columns at that σ̃, as the calibration stores it; None
            unless entropy is matched.
    """

    log_lengths: Tensor
    values: Tensor
    columns: Tensor | None = None


def curve(matching: Matching, head_dim: int) -> Curve:
    """The calibrated curve for a head dimension."""
    if matching.fit is not None:
        return Curve(torch.zeros(1), torch.tensor([matching.fit]))
    calibrated = calibration_for(head_dim)
    values = torch.tensor(getattr(calibrated, matching.target))
    return Curve(
        torch.tensor(calibrated.lengths).log(),
        values if matching.target == "linear" else values.log(),
        torch.tensor(calibrated.columns) if matching.target == "entropy" else None,
    )


# All that `torch.compiler.assume_constant_result` does, which would load the compiler: with it,
# `import lln` would take twice as long as `import torch`.
curve._dynamo_marked_constant = True  # type: ignore[attr-defined]


def linear_fit(matching: Matching, head_dim: int, log_keys: Tensor) -> tuple[Tensor, Tensor]:
    """The a and b of Eq. 11 and 33 for `(rows, 1)` numbers of keys, `(rows, 1)` each.

    They are the matching's own, if it has any, and calibrated otherwise.
    """
    linear = curve(Matching(target="linear", fit=matching.fit), head_dim)
    a, b = _at_length(linear.log_lengths, linear.values, log_keys).split(1, dim=1)
    return a, b


def width(curve: Curve, score_std: Tensor, log_keys: Tensor) -> Tensor:
    """σ̃ for each σ_sm `(rows, H)`, given `(rows, 1)` the logarithm of the number of keys.

    Interpolates linearly in log N, and in log σ̃ over log σ_sm; beyond the grid σ̃ goes on in
    proportion to σ_sm, as it does in both limits.
    """
    values = _at_length(curve.log_lengths, curve.values, log_keys)
    if values.shape[1] == 2:
        a, b = values[:, :1], values[:, 1:]
        return ((score_std.square() - b) / a).clamp(min=0).sqrt()
    place = _place(score_std)
    low, high = place.both_sides(values)
    return place.width(torch.lerp(low, high, place.share))


class Expected(NamedTuple):
    """What the calibration expects at some σ_sm, `(rows, H)` each.

    Attributes:
        width: the matched σ̃.
        columns: the entropy of the columns at that σ̃.
        fall: how steeply it falls with log σ̃.
        on_grid: whether the calibration knows this σ_sm.
    """

    width: Tensor
    columns: Tensor
    fall: Tensor
    on_grid: Tensor


def expect(curve: Curve, score_std: Tensor, log_keys: Tensor) -> Expected:
    """`width`, and where the calibration expects the columns to be."""
    if curve.columns is None:
        raise ValueError("only the entropy target knows the entropy of columns")
    both = torch.stack([curve.values, curve.columns], 1)  # (L, 2, points)
    place = _place(score_std)
    low, high = place.both_sides(_at_length(curve.log_lengths, both, log_keys))  # (rows, 2, H)
    rise = high - low
    log_width, spread = torch.addcmul(low, rise, place.share.unsqueeze(1)).unbind(1)
    # The calibration holds s = log((log2 N − C) / C), so C = log2 N / (1 + exp(s)).
    part = torch.sigmoid(-spread)
    expected = part * (log_keys / math.log(2))
    by_log_width = rise[:, 1] / rise[:, 0]
    return Expected(
        place.width(log_width),
        expected,
        expected * (1 - part) * by_log_width,
        place.step == place.on_grid,
    )


class _Place(NamedTuple):
    """Where σ_sm `(rows, H)` lies, in steps of the grid."""

    step: Tensor
    on_grid: Tensor  # the nearest place on it
    left: Tensor  # the point of the grid left of it
    share: Tensor  # of the point right of it

    def both_sides(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The values `(rows, ..., points)` left and right of it, `(rows, ..., H)`."""
        left = self.left
        if values.dim() == 3:
            left = left.unsqueeze(1).expand(-1, values.shape[1], -1)
        return values.gather(-1, left), values.gather(-1, left + 1)

    def width(self, log_width: Tensor) -> Tensor:
        """σ̃, which beyond the grid goes on in proportion."""
        beyond = (self.step - self.on_grid) * (math.log(2) / STEPS_PER_DOUBLING)
        return (log_width + beyond).exp()


def _place(score_std: Tensor) -> _Place:
    step = (score_std.clamp(min=1e-9) / SCORE_STD_MIN).log2() * STEPS_PER_DOUBLING
    on_grid = step.clamp(0, SCORE_STD_POINTS - 1)
    # A NaN in q or k has no place: whatever integer it is, the share makes the result NaN.
    left = on_grid.long().clamp(0, SCORE_STD_POINTS - 2)
    return _Place(step, on_grid, left, on_grid - left)


def _at_length(log_lengths: Tensor, values: Tensor, log_keys: Tensor) -> Tensor:
    """The curves `(L, ...)` at `(rows, 1)` numbers of keys, `(rows, ...)`.

    They go on linearly beyond the longest calibrated length, and stop at the shortest.
    """
    lengths, values = log_lengths.to(log_keys), values.to(log_keys)  # may be stored in half
    if lengths.shape[0] == 1:
        return values.expand(log_keys.shape[0], *values.shape[1:])
    log_keys = log_keys.squeeze(1)
    right = torch.searchsorted(lengths, log_keys).clamp(1, lengths.shape[0] - 1)
    left = right - 1
    shorter, longer = lengths.index_select(0, left), lengths.index_select(0, right)
    share = ((log_keys - shorter) / (longer - shorter)).clamp(min=0)
    share = share.view(-1, *[1] * (values.dim() - 1))
    return torch.lerp(values.index_select(0, left), values.index_select(0, right), share)
