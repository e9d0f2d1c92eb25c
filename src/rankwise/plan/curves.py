"""A quantity as a function of a size, from measurements at a few sizes: the line through all, or what lies between."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Point = tuple[float, float]
"""A size, and what was measured there."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """`fixed` + `slope` x size, of which neither is below zero.

    `error` is how far the measurements lie from it: the root of the mean square, as a share of their values.
    """

    fixed: float
    slope: float
    error: float = 0.0

    def at(self, size: float) -> float:
        return self.fixed + self.slope * size


def line_through(points: Iterable[Point]) -> Line:
    """The line with the least squares of relative deviations: small values count as much as large ones.

    `points` are above zero. With one size alone the line is level.
    """
    sizes, values = np.array(sorted(points), dtype=float).T
    design = np.stack([1 / values, sizes / values], axis=1)
    if np.ptp(sizes) == 0:
        return _fitted(design, (0,))
    both = _fitted(design, (0, 1))
    if both.fixed >= 0 and both.slope >= 0:
        return both
    return min(_fitted(design, (0,)), _fitted(design, (1,)), key=lambda line: line.error)


def _fitted(design: np.ndarray, columns: tuple[int, ...]) -> Line:
    """The fit with some of fixed (0) and slope (1); the other is zero."""
    solution = np.zeros(2)
    solution[list(columns)] = np.linalg.lstsq(design[:, columns], np.ones(len(design)), rcond=None)[0]
    error = math.sqrt(np.mean((design @ solution - 1) ** 2))
    return Line(fixed=float(solution[0]), slope=float(solution[1]), error=error)


@dataclass(frozen=True)
class Curve:
    """Measurements above zero, by growing size: straight between them, and along the line through all beyond them.

    A line alone would miss the steps that a device makes where a size fills its units.
    """

    points: tuple[Point, ...]

    @classmethod
    def of(cls, points: Sequence[Point]) -> Curve:
        """The curve through `points`; those of one size become their mean."""
        values: dict[float, list[float]] = {}
        for size, value in points:
            values.setdefault(size, []).append(value)
        return cls(tuple((size, sum(found) / len(found)) for size, found in sorted(values.items())))

    def at(self, size: float) -> float:
        """The value at `size`; beyond the measurements that of the nearest, moved by the slope of the line."""
        first, last = self.points[0], self.points[-1]
        if not first[0] < size < last[0]:
            near = first if size <= first[0] else last
            return max(0.0, near[1] + self.line.slope * (size - near[0]))
        right = bisect_left([each[0] for each in self.points], size)
        return _between(self.points[right - 1], self.points[right], size)

    @property
    def line(self) -> Line:
        return line_through(self.points)

    def bend(self, size: float) -> float:
        """The share by which a measurement next to `size` lies off the straight between its own neighbours.

        The larger of those on both sides, 0 where both are the first or the last. It is what the value at `size` may be
        off by.
        """
        right = bisect_left([each[0] for each in self.points], size)
        return max((self._bend_of(index) for index in (right - 1, right) if 0 < index < len(self.points) - 1),
                   default=0.0)

    def _bend_of(self, index: int) -> float:
        before, (size, value), after = self.points[index - 1:index + 2]
        return abs(_between(before, after, size) / value - 1)

    def covers(self, size: float) -> bool:
        """Whether `size` lies among the measured ones."""
        return self.points[0][0] <= size <= self.points[-1][0]


def _between(before: Point, after: Point, size: float) -> float:
    share = (size - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])
