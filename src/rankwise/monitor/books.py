"""The books of all ranks: what an interval of steps was spent on, rank by rank, put together behind the steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from rankwise.group import Group, Pending
from rankwise.ledger import OUTSIDE, PHASES, TOTAL_FROM, Book
from rankwise.monitor.flops import Flops
from rankwise.monitor.memory import busy_share, peak_memory_bytes

_UNKNOWN = -1.0   # no number of a book is below 0
_EXTRAS = ("communication_total", "wire_bytes", "device_busy", "flops_per_second")


@dataclass(frozen=True, kw_only=True)
class RankBook:
    """One rank's means over the steps of an interval: seconds and bytes a step. Its six phases add up to its step."""

    data: float
    forward: float
    backward: float
    communication: float
    """Not hidden behind backward."""
    optimizer: float
    other: float
    outside: float
    """Between passes over the training data; no part of a step."""
    communication_total: float | None
    """Hidden time included, of one step of the interval; None: not measured."""
    wire_bytes: float
    device_busy: float | None
    """Share of the time in which the device ran some kernel; None: not known, as on a CPU."""
    flops_per_second: float | None
    memory_bytes: list[int]
    """Peak so far, by device; on a CPU of the process."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """What `steps` steps up to `step` were spent on, by rank."""

    step: int
    epoch: int
    steps: int
    samples: int
    clock: str
    ranks: list[RankBook]

    @property
    def communication_from(self) -> str:
        """What told the whole time of the communication."""
        return TOTAL_FROM if any(rank.communication_total is not None for rank in self.ranks) else "not measured"

    def as_values(self) -> dict[str, Any]:
        """As it is logged."""
        return {"steps": self.steps, "samples": self.samples, "clock": self.clock,
                "ranks": [vars(rank) for rank in self.ranks], "communication_from": self.communication_from}


class Interval(NamedTuple):
    """The last step of some steps, and what they were."""

    step: int
    epoch: int
    steps: int
    samples: int
    rows: int
    """Of this rank."""


class Books:
    """Closes this rank's book with each interval, and sends it to all ranks without waiting for it."""

    def __init__(self, group: Group, devices: int) -> None:
        """`devices` is the number that this rank drives."""
        self.flops = Flops(group.device)
        self._group, self._ledger, self._devices = group, group.ledger, devices
        self._lag = 0 if self._ledger.clock == "host" else 1   # a device is that much behind
        self._closed: deque[tuple[Interval, Book]] = deque()

    def close(self, interval: Interval | None) -> list[Reading]:
        """End an interval; None ends none and gives all that is left. Every rank calls it at the same step.

        Returns what is on its way now.
        """
        if interval is not None:
            self._closed.append((interval, self._ledger.close()))
        left = 0 if interval is None else self._lag
        readings = []
        while len(self._closed) > left:
            ended, book = self._closed.popleft()
            readings.append(self._send(ended, book))
        return readings

    def _send(self, interval: Interval, book: Book) -> Reading:
        seconds = book.seconds()
        step_seconds = (sum(seconds) - seconds[OUTSIDE]) / interval.steps
        extras = (book.communication_seconds, book.sent_bytes / interval.steps, busy_share(self._group.device),
                  self.flops.per_second(interval.rows / interval.steps, step_seconds))
        memory = peak_memory_bytes(self._group.device, self._devices)
        row = [*(each / interval.steps for each in seconds),
               *(_UNKNOWN if each is None else each for each in extras), *map(float, memory)]
        kind = torch.float32 if self._group.device.type == "mps" else torch.float64
        matrix = torch.zeros(self._group.size, len(row), dtype=kind)
        matrix[self._group.rank] = torch.tensor(row, dtype=kind)
        pending = self._group.sum_later(matrix.to(self._group.device))
        return Reading(interval, self._ledger.clock, self._group, pending)


class Reading:
    """The books of all ranks for an interval, on their way."""

    def __init__(self, interval: Interval, clock: str, group: Group, pending: Pending) -> None:
        self.interval = interval
        self._clock, self._group, self._pending = clock, group, pending

    def split(self) -> Split:
        """Waits where they are not here yet."""
        with self._group.explained("the exchange of what the steps were spent on"):
            rows = self._pending.wait().tolist()
        interval = self.interval
        return Split(step=interval.step, epoch=interval.epoch, steps=interval.steps, samples=interval.samples,
                     clock=self._clock, ranks=[_rank_book(row) for row in rows])


def _rank_book(row: list[float]) -> RankBook:
    phases = dict(zip(PHASES, row, strict=False))
    extras = {name: None if value == _UNKNOWN else value
              for name, value in zip(_EXTRAS, row[len(PHASES):], strict=False)}
    memory = [int(value) for value in row[len(PHASES) + len(_EXTRAS):]]
    return RankBook(**phases, **extras, memory_bytes=memory)  # type: ignore[arg-type]
