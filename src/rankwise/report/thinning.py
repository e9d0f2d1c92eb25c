"""Long series made short enough for a screen, without losing what stands out of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

POINTS = 600
"""What a line keeps; more than a screen can tell apart."""


def kept(values: Sequence[float], limit: int = POINTS) -> list[int]:
    """The places of the values that stay, at most `limit`, in order: all, or else ends, peaks and troughs.

    The series is cut into equal parts, of which each keeps its smallest and its largest finite value.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    parts = max(1, (limit - 2) // 2)
    size = math.ceil((len(values) - 2) / parts)
    chosen = {0, len(values) - 1}
    for begin in range(1, len(values) - 1, size):
        part = range(begin, min(begin + size, len(values) - 1))
        finite = [place for place in part if math.isfinite(values[place])] or [begin]
        chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    return sorted(chosen)
