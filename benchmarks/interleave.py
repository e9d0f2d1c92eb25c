"""Time several ways of doing the same work in alternating blocks, so that a drifting machine decides nothing.

Every comparison carries an A/A control: the reference stands twice among the ways, and how far its two copies are apart
says how large a difference this run can show.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

CONTROL = "the same again (A/A)"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median over rounds, and its bootstrap 95 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        values = list(values)
        generator = random.Random(0)
        medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(1000))
        return cls(median=statistics.median(values), low=medians[24], high=medians[974])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A way against the reference, round by round: seconds, their ratio, and how many seconds more."""

    name: str
    seconds: float
    ratio: Estimate
    more_seconds: Estimate


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


def comparisons(seconds: dict[str, list[float]]) -> list[Comparison]:
    """Each way against the first."""
    reference = next(iter(seconds.values()))
    return [Comparison(name=name, seconds=statistics.median(values),
                       ratio=Estimate.of(value / base for value, base in zip(values, reference, strict=True)),
                       more_seconds=Estimate.of(value - base for value, base in zip(values, reference, strict=True)))
            for name, values in seconds.items()]


def table(title: str, found: list[Comparison]) -> str:
    """The comparisons as a Markdown table."""
    rows = ["| way | median, ms | ratio | 95 % interval | more, us | 95 % interval |",
            "| --- | --- | --- | --- | --- | --- |"]
    for each in found:
        ratio, more = each.ratio, each.more_seconds
        rows.append(f"| {each.name} | {each.seconds * 1e3:.3f} "
                    f"| {ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} "
                    f"| {more.median * 1e6:.1f} | {more.low * 1e6:.1f} to {more.high * 1e6:.1f} |")
    return "\n".join([f"### {title}", "", *rows, ""])


def as_json(found: list[Comparison]) -> dict[str, Any]:
    """The comparisons by name, as plain values."""
    return {each.name: asdict(each) for each in found}
