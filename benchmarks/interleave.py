"""Time several ways of doing the same work in alternating blocks, so that a drifting machine decides nothing.

Every comparison carries an A/A control: the reference stands twice among the ways, and the ratio of its two copies says
how large a difference this run can show.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CONTROL = "the same again (A/A)"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A way's time over the reference's, round by round: median and a bootstrap 95 % interval."""

    name: str
    median: float
    low: float
    high: float
    seconds: float

    def row(self) -> str:
        return f"| {self.name} | {self.seconds * 1e3:.3f} | {self.median:.3f} | {self.low:.3f} to {self.high:.3f} |"


def measure(ways: dict[str, Callable[[], float]], *, control: Callable[[], float], rounds: int, warm_up: int = 2
            ) -> dict[str, list[float]]:
    """Seconds of each way in each round. A way returns the seconds that it took; the order turns around every round.

    The first way is the reference; `control` is a second, independent copy of it.
    """
    chosen = {**ways, CONTROL: control}
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(warm_up + rounds):
        names = list(chosen)
        for name in names if turn % 2 == 0 else reversed(names):
            took = chosen[name]()
            if turn >= warm_up:
                seconds[name].append(took)
    return seconds


def ratios(seconds: dict[str, list[float]]) -> list[Ratio]:
    """Each way against the first."""
    reference = next(iter(seconds.values()))
    return [_ratio(name, values, reference) for name, values in seconds.items()]


def _ratio(name: str, values: Sequence[float], reference: Sequence[float]) -> Ratio:
    pairs = [value / base for value, base in zip(values, reference, strict=True)]
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(pairs, k=len(pairs))) for _ in range(1000))
    return Ratio(name=name, median=statistics.median(pairs), low=medians[24], high=medians[974],
                 seconds=statistics.median(values))


def table(title: str, found: list[Ratio]) -> str:
    """The ratios as a Markdown table; milliseconds are medians."""
    return "\n".join([f"### {title}", "", "| way | ms | ratio | 95 % interval |", "| --- | --- | --- | --- |",
                      *(ratio.row() for ratio in found), ""])
