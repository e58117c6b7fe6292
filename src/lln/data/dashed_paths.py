"""Two dashed paths and distractors, grown dash by dash, as https://github.com/drewlinsley/pathfinder.

Two paths start near the centre and grow in turns, then short distractors do where there is room. A
tip of the next dash is chosen on a circle around the end of the gap, with probability
cos²(continuity · turn), and a dash must not come closer to others than the gap.

Deviations: the published code forgets the newest dash of the one path while the other grows, and of
the first path while distractors do; and in small images, where a gap is a pixel or two, its paths
may cross. Here no dash is forgotten, and paths that cross are thrown away.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SCALE = 2  # dashes and markers are drawn this much larger, then scaled down
DASH_ATTEMPTS, DISTRACTOR_ATTEMPTS = 3, 5
OCCUPIED, TOUCHING = 0.3, 1.8  # of what dashes cover, and of the sum for two of them

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """How images are drawn; lengths in pixels.

    Attributes:
        size: Of the image.
        dash: Length of a dash.
        thickness: Of a dash.
        gaps: Half the distances between dashes, of which each image has one.
        seed_distance: Between the starts of the two paths.
        marker_radius: Of the discs on two tips.
        continuity: The larger, the straighter paths are.
        brightness: Of the two paths.
        distractor_brightness: Of distractors.
        distractor_dashes: Of all distractors of an image together, at most.
        dashes: Of each of the two paths; a distractor has a third.
    """

    size: int
    dash: int
    thickness: float
    gaps: tuple[int, ...]
    seed_distance: int
    marker_radius: float
    continuity: float
    brightness: float
    distractor_brightness: float
    distractor_dashes: int
    dashes: int = 14


class Tip(NamedTuple):
    """A place in the image."""

    row: int
    column: int

    def moved(self, angle: float, distance: float) -> "Tip":
        """The place in a direction, rounded up as in the published code, which shapes the gaps."""
        row, column = self.row + distance * np.sin(angle), self.column + distance * np.cos(angle)
        return Tip(int(np.ceil(row)), int(np.ceil(column)))


class Dash(NamedTuple):
    """A dash of a path, from `start` to `end`; `pivot` is the end of the gap before it."""

    start: Tip
    end: Tip
    pivot: Tip
    angle: float


class Drawing(NamedTuple):
    """The image of both paths and of distractors, (size, size), and the dashes of the paths."""

    image: Array
    paths: tuple[list[Dash], list[Dash]]


def draw_paths(settings: Settings, draw: np.random.Generator) -> Drawing:
    """Starts again and again until both paths have their length and do not cross."""
    while True:
        canvas = Canvas(settings, int(draw.choice(settings.gaps)), draw)
        if (paths := canvas.two_paths()) and not _cross(*paths):
            return canvas.finished(paths)


class Canvas:
    """What is covered so far, with a border so that no dash reaches over its edge.

    Args:
        settings: Of the image.
        gap: Half the distance between dashes.
        draw: Makes the choices.
    """

    def __init__(self, settings: Settings, gap: int, draw: np.random.Generator) -> None:
        self.settings, self.gap, self.draw = settings, gap, draw
        self.radius = settings.dash + int(np.ceil(settings.thickness)) + gap  # of a dash's stamp
        self.near = np.argwhere(_disc(gap)) - gap + self.radius  # (disc, 2)
        self.covered = np.pad(np.zeros((settings.size - 2,) * 2, np.float32), 1, constant_values=1)
        self.covered = np.pad(self.covered, self.radius)

    def two_paths(self) -> tuple[list[Dash], list[Dash]] | None:
        """Both paths, or None for a dead end."""
        first = self.seed(self.covered, inset=2 * self.settings.seed_distance)
        second = first and self.second_seed(first)
        if not first or not second:
            return None
        paths = [first], [second]
        for _ in range(self.settings.dashes - 1):
            for path, other in (paths, paths[::-1]):
                dash = self.next(path[-1], self.with_dash(self.covered, other[-1]))
                if dash is None:
                    return None
                self.covered = self.with_dash(self.covered, path[-1])
                path.append(dash)
        return paths

    def finished(self, paths: tuple[list[Dash], list[Dash]]) -> Drawing:
        """Adds the distractors that find room, and draws everything."""
        settings = self.settings
        for path in paths:
            self.covered = self.with_dash(self.covered, path[-1])
        lines = [(dash, settings.brightness) for path in paths for dash in path]
        length = settings.dashes // 3
        for _ in range(settings.distractor_dashes // length):
            for _ in range(DISTRACTOR_ATTEMPTS):
                if distractor := self.distractor(length):
                    lines += [(dash, settings.distractor_brightness) for dash in distractor]
                    break
        image = np.zeros_like(self.covered)
        for dash, brightness in lines:
            window = image[self.window(dash.end)]
            np.maximum(window, brightness * self.stamp(dash.angle + np.pi)[0], out=window)
        inner = slice(self.radius, -self.radius)
        return Drawing(image[inner, inner], paths)

    def distractor(self, length: int) -> list[Dash] | None:
        """A path apart from all others, or None for a dead end."""
        covered, path = self.covered, []
        dash = self.seed(covered, inset=1)
        while dash:
            path.append(dash)
            if len(path) == length:
                self.covered = self.with_dash(covered, dash)
                return path
            dash = self.next(dash, covered)
            covered = self.with_dash(covered, path[-1])
        return None

    def seed(self, covered: Array, inset: int) -> Dash | None:
        """The first dash of a path where it touches nothing, `inset` from the edges."""
        edge = self.radius + inset
        inner = np.pad(covered[edge:-edge, edge:-edge], self.radius, constant_values=1)
        for _ in range(DASH_ATTEMPTS):
            angle = np.deg2rad(self.draw.integers(-180, 180))
            taken = _dilated(inner, self.stamp(angle)[1] >= 1)
            free = np.argwhere(taken <= OCCUPIED)  # (places, 2)
            if not len(free):
                return None
            row, column = free[self.draw.integers(len(free))].tolist()
            if dash := self.starting(Tip(row + inset, column + inset), angle):
                return dash
        return None

    def second_seed(self, first: Dash) -> Dash | None:
        """The first dash of the second path, at its distance from the first one."""
        for _ in range(DASH_ATTEMPTS):
            angle, around = np.deg2rad(self.draw.integers((-180, 0), (180, 360)))
            row = first.start.row + self.settings.seed_distance * np.sin(around)
            column = first.start.column + self.settings.seed_distance * np.cos(around)
            if dash := self.starting(Tip(round(row), round(column)), angle):
                return dash
        return None

    def starting(self, start: Tip, angle: float) -> Dash | None:
        """A dash with nothing before it, if it is inside the image."""
        end = start.moved(angle, self.settings.dash)
        pivot = end.moved(angle + np.pi, self.settings.dash + self.gap)
        inside = all(
            0 <= place < self.settings.size for tip in (start, end, pivot) for place in tip
        )
        return Dash(start, end, pivot, angle) if inside else None

    def next(self, last: Dash, covered: Array) -> Dash | None:
        """The dash after `last`, or None where there is no room for one."""
        settings, gap = self.settings, self.gap
        pivot = last.pivot.moved(last.angle, settings.dash + 2 * gap)
        offsets, angles = _circle(settings.dash + gap)
        ends = offsets + pivot  # (candidates, 2)
        inside = ((ends >= 0) & (ends < settings.size)).all(1)
        ends, angles = ends[inside], angles[inside]
        turns = np.abs((angles - last.angle + np.pi) % (2 * np.pi) - np.pi)
        weights = np.cos(np.minimum(settings.continuity * turns, np.pi / 2)) ** 2
        near = ends[:, None] + self.near  # (candidates, disc, 2)
        weights *= 1 - covered[near[..., 0], near[..., 1]].max(1)
        total = np.cumsum(weights)
        if not len(ends) or total[-1] < 1e-4:
            return None
        for number in self.draw.random(DASH_ATTEMPTS):
            choice = int(np.searchsorted(total, number * total[-1], side="right"))
            end, angle = Tip(*ends[choice].tolist()), float(angles[choice])
            dash = Dash(end.moved(angle + np.pi, settings.dash), end, pivot, angle)
            window = covered[self.window(end)]
            if (window + self.stamp(angle + np.pi)[1]).max() < TOUCHING:
                return dash
        return None

    def with_dash(self, covered: Array, dash: Dash) -> Array:
        """What is covered with one more dash."""
        covered = covered.copy()
        window = covered[self.window(dash.end)]
        np.maximum(window, self.stamp(dash.angle + np.pi)[1], out=window)
        return covered

    def window(self, tip: Tip) -> tuple[slice, slice]:
        """Where the stamp of a dash from a tip lies on the canvas."""
        side = 2 * self.radius + 1
        return slice(tip.row, tip.row + side), slice(tip.column, tip.column + side)

    def stamp(self, angle: float) -> tuple[Array, Array]:
        """A dash from the middle of a small image, and what it covers with the gap around it."""
        return _stamp(self.settings.dash, self.settings.thickness, self.gap, self.radius, angle)


def disc(size: int, tip: Tip, radius: float) -> Array:
    """The image of a marker."""
    rows, columns = np.ogrid[: size * SCALE, : size * SCALE]
    distance = (rows - tip.row * SCALE) ** 2 + (columns - tip.column * SCALE) ** 2
    return _small(np.where(distance <= (radius * SCALE) ** 2, 255, 0).astype(np.uint8), size)


@lru_cache(maxsize=8192)
def _stamp(dash: int, thickness: float, gap: int, radius: int, angle: float) -> tuple[Array, Array]:
    middle, side = radius * SCALE, 2 * radius * SCALE + 1
    end = Tip(middle, middle).moved(angle, dash * SCALE)
    large = Image.new("L", (side, side))
    ImageDraw.Draw(large).line(
        [(middle, middle), (end.column, end.row)], 255, round(thickness * SCALE)
    )
    line = np.asarray(large)
    covered = _dilated(np.pad(line, gap * SCALE), _disc(gap * SCALE))
    return _small(line, 2 * radius + 1), _small(covered, 2 * radius + 1)


@lru_cache
def _circle(radius: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The pixels of a circle as offsets from its centre, and their directions."""
    around = np.arange(0, 2 * np.pi, 1 / radius)
    circle = np.floor(radius * np.stack([np.sin(around), np.cos(around)], 1))
    offsets = np.unique(circle.astype(np.int64), axis=0)  # (pixels, 2)
    return offsets, np.arctan2(offsets[:, 0], offsets[:, 1])


def _small(image: NDArray[np.uint8], size: int) -> Array:
    resized = Image.fromarray(image).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(resized, np.float32) / np.float32(255)


def _disc(radius: int) -> NDArray[np.bool_]:
    rows, columns = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return np.asarray(rows**2 + columns**2 <= radius**2)


def _dilated(image: NDArray[Any], kernel: NDArray[np.bool_]) -> NDArray[Any]:
    """The largest value under the kernel at each place where the whole of it fits."""
    height, width = (side - len(kernel) + 1 for side in image.shape)
    shifted = [
        image[down : down + height, right : right + width]
        for down, right in np.argwhere(kernel).tolist()
    ]
    return np.asarray(np.max(shifted, axis=0))


def _cross(first: list[Dash], second: list[Dash]) -> bool:
    """Whether two paths, gaps included, have a point in common."""
    one, other = (
        np.array([tip for dash in path for tip in (dash.start, dash.end)], float)  # (points, 2)
        for path in (first, second)
    )
    a, b = one[:-1, None], one[1:, None]  # (M, 1, 2)
    c, d = other[None, :-1], other[None, 1:]  # (1, M, 2)

    def side(p: NDArray[Any], q: NDArray[Any], r: NDArray[Any]) -> NDArray[Any]:
        along, across = q - p, r - p
        return np.asarray(along[..., 0] * across[..., 1] - along[..., 1] * across[..., 0])

    # Two pieces meet if each has ends on both sides of the other; on one line, if they overlap.
    overlap = (np.minimum(a, b) <= np.maximum(c, d)) & (np.minimum(c, d) <= np.maximum(a, b))
    astride = side(a, b, c) * side(a, b, d) <= 0
    return bool((overlap.all(-1) & astride & (side(c, d, a) * side(c, d, b) <= 0)).any())
