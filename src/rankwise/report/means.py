"""Means of step splits over steps and ranks; each record counts by its number of steps, so that a mean is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankwise.history import PHASES, Event, RankSplit, Split


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Means per step over `steps` steps, which ended with `event`. None: not measured in all of them."""

    event: Event
    steps: int
    seconds: dict[str, float]
    communication_total: float | None
    wire_bytes: float

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def of_rank(splits: Sequence[Split], rank: int) -> Mean:
    """The mean of one rank over these records, which all have it."""
    return _mean(splits, [(split.steps, split.ranks[rank]) for split in splits])


def mean_over_ranks(splits: Sequence[Split]) -> Mean:
    """The mean over all steps of these records, and over their ranks."""
    return _mean(splits, [(split.steps / len(split.ranks), rank) for split in splits for rank in split.ranks])


def merged(splits: Sequence[Split], limit: int) -> list[Mean]:
    """At most `limit` means over ranks, each over neighbouring records."""
    size = max(1, math.ceil(len(splits) / limit))
    return [mean_over_ranks(splits[begin:begin + size]) for begin in range(0, len(splits), size)]


def _mean(splits: Sequence[Split], weighed: Sequence[tuple[float, RankSplit]]) -> Mean:
    totals = [rank.communication_total for _, rank in weighed]
    return Mean(event=splits[-1], steps=sum(split.steps for split in splits),
                seconds={phase: _weighed(weighed, lambda rank, phase=phase: rank.seconds[phase])  # type: ignore[misc]
                         for phase in PHASES},
                communication_total=None if None in totals else
                _weighed(weighed, lambda rank: rank.communication_total or 0.0),
                wire_bytes=_weighed(weighed, lambda rank: rank.wire_bytes))


def _weighed(weighed: Sequence[tuple[float, RankSplit]], value: Callable[[RankSplit], float]) -> float:
    weight = sum(each for each, _ in weighed)
    return sum(each * value(rank) for each, rank in weighed) / weight if weight else 0.0
