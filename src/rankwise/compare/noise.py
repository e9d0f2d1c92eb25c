"""When a difference is larger than the noise of the machine: paired ratios, and a control that differs in nothing.

In each round every layout runs once and the baseline twice (A/A). A layout is compared with the baseline of its own
round, so that a machine that drifts from round to round decides nothing. How far the two runs of the baseline are apart
is what this machine does to a comparison in which nothing was changed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

ByRound = Mapping[int, float]
"""A cost (seconds a step, or a sample) for each round, numbered from 0."""


def middle(first: ByRound, again: ByRound) -> dict[int, float]:
    """The baseline's cost in each round: the geometric mean of its two runs."""
    return {number: math.sqrt(first[number] * again[number]) for number in first.keys() & again.keys()}


def ratios(ours: ByRound, theirs: ByRound) -> list[float]:
    """Our cost over theirs, for each round that has both."""
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def noise(first: ByRound, again: ByRound) -> float:
    """The largest factor, at least 1, between the two runs of the baseline in one round."""
    return max((max(ratio, 1 / ratio) for ratio in ratios(first, again)), default=math.inf)


def is_beyond(found: Sequence[float], noise: float) -> bool:
    """Whether ratios show a difference: all on one side of 1, and their median further from 1 than the noise.

    Where nothing differs and rounds scatter normally, this holds in 3.9 % of all comparisons of three rounds, 1.1 % of
    four and 0.3 % of five (simulated, 20,000 comparisons each).
    """
    if not found or not (all(ratio > 1 for ratio in found) or all(ratio < 1 for ratio in found)):
        return False
    median = statistics.median(found)
    return max(median, 1 / median) > noise
