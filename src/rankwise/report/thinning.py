"""Long series made short enough for a screen, without losing what stands out of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

POINTS = 600
"""What a line keeps; more than a screen can tell apart."""


def kept(values: Sequence[float | None], limit: int = POINTS) -> list[int]:
    """The numbers of those values that stay, at most `limit`, in order: all, or else ends, peaks and troughs.

    The series is cut into equal parts, of which each keeps its smallest and its largest value.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    parts = max(1, (limit - 2) // 2)
    size = math.ceil((len(values) - 2) / parts)
    chosen = {0, len(values) - 1}
    for begin in range(1, len(values) - 1, size):
        part = range(begin, min(begin + size, len(values) - 1))
        known = [number for number in part if values[number] is not None] or [begin]
        chosen |= {min(known, key=lambda number: values[number] or 0.0),
                   max(known, key=lambda number: values[number] or 0.0)}
    return sorted(chosen)
