"""What a training's steps were spent on, over all of its intervals: the numbers behind the lines at its end."""

from __future__ import annotations

import statistics
from collections import Counter

from rankwise.monitor.books import RankBook, Split
from rankwise.stepparts import PARTS

OWN_PARTS = tuple(part for part in PARTS if part != "communication")
_SOMETIMES_KNOWN = ("communication_total", "wire_bytes", "device_busy", "flops_per_second")


class Usage:
    """Means over all steps of the splits that were added; an interval counts by its steps."""

    def __init__(self) -> None:
        self.steps = self.samples = self.ranks = 0
        self.clock = self.communication_from = ""
        self.memory_bytes: list[list[int]] = []   # by rank and device, as last added
        self._seconds: list[Counter[str]] = []    # by rank: of all steps together
        self._known: Counter[str] = Counter()
        self._known_steps: Counter[str] = Counter()

    def add(self, split: Split) -> None:
        self.ranks, self.clock = len(split.ranks), split.clock
        self.steps += split.steps
        self.samples += split.samples
        self.memory_bytes = [rank.memory_bytes for rank in split.ranks]
        self._seconds = self._seconds or [Counter() for _ in split.ranks]
        for total, rank in zip(self._seconds, split.ranks, strict=True):
            for part in PARTS:
                total[part] += getattr(rank, part) * split.steps
            self._add_known(rank, split.steps)
        if self._known_steps["communication_total"]:
            self.communication_from = split.communication_from

    def _add_known(self, rank: RankBook, steps: int) -> None:
        for name in _SOMETIMES_KNOWN:
            value = getattr(rank, name)
            if value is not None:
                self._known[name] += value * steps
                self._known_steps[name] += steps

    @property
    def devices(self) -> int:
        return self.ranks if self.clock == "host" else sum(map(len, self.memory_bytes))

    def of_rank(self, rank: int, part: str) -> float:
        """Seconds a step."""
        return self._seconds[rank][part] / self.steps

    def mean(self, part: str) -> float:
        """Seconds a step of one part, over all ranks."""
        return statistics.fmean(self.of_rank(rank, part) for rank in range(self.ranks))

    def share(self, part: str) -> float:
        return self.mean(part) / self.step_seconds

    def known(self, name: str) -> float | None:
        """Mean of what not every interval knows, over ranks and steps; None where none does."""
        steps = self._known_steps[name]
        return self._known[name] / steps if steps else None

    @property
    def step_seconds(self) -> float:
        return sum(map(self.mean, PARTS))

    @property
    def samples_per_second(self) -> float:
        return self.samples / (self.step_seconds * self.steps)

    # Ranks that wait for each other

    @property
    def transport_seconds(self) -> float:
        """What the rank that waited least waited: the others were there, so it is the way of the gradients itself."""
        return min(self.of_rank(rank, "communication") for rank in range(self.ranks))

    @property
    def waiting_seconds(self) -> float:
        """What ranks waited beyond that, in the mean: for the slowest."""
        return self.mean("communication") - self.transport_seconds

    def own_seconds(self, rank: int) -> float:
        """A step without what this rank waits for others."""
        return sum(self.of_rank(rank, part) for part in OWN_PARTS)

    @property
    def slowest(self) -> int:
        """The rank with the longest step of its own."""
        return max(range(self.ranks), key=self.own_seconds)

    @property
    def lag_seconds(self) -> float:
        """How much longer the slowest rank's own step is than those of the others, in the mean."""
        return sum(map(self._lag, OWN_PARTS))

    @property
    def lagging_part(self) -> str:
        """In what the slowest rank falls behind most."""
        return max(OWN_PARTS, key=self._lag)

    def _lag(self, part: str) -> float:
        others = [self.of_rank(rank, part) for rank in range(self.ranks) if rank != self.slowest]
        return self.of_rank(self.slowest, part) - statistics.fmean(others) if others else 0.0
