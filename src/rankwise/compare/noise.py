"""When a difference is larger than the noise of the machine: paired ratios, and a control that differs in nothing.

In each round every layout runs once and the baseline twice (A/A). A layout is compared with the baseline of its own
round, so that a machine that drifts from round to round decides nothing. How far the two runs of the baseline are apart
is what this machine does to a comparison in which nothing was changed; how far a layout's own ratios scatter is the
same for that layout. Both make the noise: the bound that chance alone passes in about 2 of 100 comparisons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

ByRound = Mapping[int, float]
"""A cost (seconds a step, or a sample) for each round, numbered from 0."""

_CHANCE = 0.05
_OF_THE_MEDIAN = math.sqrt(math.pi / 2)   # its standard error beside that of the mean, for many normal values
_LEAST = 1e-3                             # a difference of less is nobody's reason


def middle(first: ByRound, again: ByRound) -> dict[int, float]:
    """The baseline's cost in each round: the geometric mean of its two runs."""
    return {number: math.sqrt(first[number] * again[number]) for number in first.keys() & again.keys()}


def ratios(ours: ByRound, theirs: ByRound) -> list[float]:
    """Our cost over theirs, for each round that has both."""
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def noise(found: Sequence[float], control: Sequence[float]) -> float:
    """The factor, above 1, by which the median of ratios may be off by chance; `control` are those of A/A.

    Student's t interval over logarithms, whose variance is that of the ratios about their mean and of the control about
    0, pooled. Where nothing differs and rounds scatter normally, 2 to 3 % of medians are beyond it, for 3 to 10 rounds
    (simulated, 20,000 comparisons each). Infinite where a single ratio stands alone.
    """
    logs, known = [math.log(ratio) for ratio in found], [math.log(ratio) for ratio in control]
    freedom = len(logs) - 1 + len(known)
    if not logs or freedom < 1:
        return math.inf
    mean = statistics.fmean(logs)
    variance = (sum((each - mean) ** 2 for each in logs) + sum(each ** 2 for each in known)) / freedom
    error = _OF_THE_MEDIAN * math.sqrt(variance / len(logs))
    return math.exp(max(_LEAST, t_quantile(1 - _CHANCE / 2, freedom) * error))


def is_beyond(found: Sequence[float], control: Sequence[float]) -> bool:
    """Whether the median of ratios is further from 1 than the noise."""
    if not found:
        return False
    median = statistics.median(found)
    return max(median, 1 / median) > noise(found, control)


def t_quantile(share: float, freedom: int) -> float:
    """The value that Student's t with so many degrees of freedom stays below in this share of all cases.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5: within 0.2 % from 5 degrees of freedom on.
    """
    x = statistics.NormalDist().inv_cdf(share)
    terms = ((x ** 3 + x) / 4,
             (5 * x ** 5 + 16 * x ** 3 + 3 * x) / 96,
             (3 * x ** 7 + 19 * x ** 5 + 17 * x ** 3 - 15 * x) / 384)
    return x + math.fsum(term / freedom ** (power + 1) for power, term in enumerate(terms))
