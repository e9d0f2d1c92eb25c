"""Means of step splits over steps and ranks; each record counts by its number of steps, so that a mean is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankwise.history import Event, RankSplit, Split
from rankwise.stepparts import PARTS


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Means per step over `steps` steps, which ended with `event`; None where nothing was measured."""

    event: Event
    steps: int
    seconds: dict[str, float]
    wire_bytes: float
    communication_total: float | None
    device_busy: float | None
    flops_per_second: float | None

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
    def mean(value: Callable[[RankSplit], float | None]) -> float | None:
        known = [(weight, number) for weight, rank in weighed if (number := value(rank)) is not None]
        whole = sum(weight for weight, _ in known)
        return sum(weight * number for weight, number in known) / whole if whole else None

    return Mean(event=splits[-1], steps=sum(split.steps for split in splits),
                seconds={phase: mean(lambda rank, phase=phase: rank.seconds[phase]) or 0.0  # type: ignore[misc]
                         for phase in PARTS},
                wire_bytes=mean(lambda rank: rank.wire_bytes) or 0.0,
                communication_total=mean(lambda rank: rank.communication_total),
                device_busy=mean(lambda rank: rank.device_busy),
                flops_per_second=mean(lambda rank: rank.flops_per_second))
