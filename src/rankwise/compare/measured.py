"""What one job of a layout measured, over its ranks; and a layout's jobs over the rounds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankwise.compare.layouts import Layout

if TYPE_CHECKING:
    from rankwise.trials import Trial


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One job. A step takes as long as its slowest rank; what is None was not measured.

    `split` and the communication are seconds a step, means over the ranks; `communication` in it is what backward does
    not hide, and of that `waiting_seconds` is the wait for slower ranks. Memory is a device's peak (on a CPU a
    process's), of the first device and of the one with the most.
    """

    steps: int
    step_seconds: float
    samples_a_step: float | None
    split: Mapping[str, float] | None
    communication_seconds: float | None
    waiting_seconds: float | None
    communication_from: str
    wire_bytes: float | None
    first_memory_bytes: int | None
    most_memory_bytes: int | None
    start_up_seconds: float | None
    loss: float | None

    @classmethod
    def of(cls, trial: Trial) -> Measured:
        """What a trial that did not fail measured."""
        ranks, steps = trial.ranks, trial.step_seconds
        memory = [size for rank in ranks for size in rank.memory_bytes]
        return cls(steps=len(steps), step_seconds=statistics.median(steps),
                   samples_a_step=ranks[0].samples / len(steps) or None, split=trial.split or None,
                   communication_seconds=_communication(trial), waiting_seconds=_waiting(trial),
                   communication_from=ranks[0].communication_from,
                   wire_bytes=statistics.fmean(rank.wire_bytes for rank in ranks) if trial.split else None,
                   first_memory_bytes=memory[0] if memory else None, most_memory_bytes=max(memory, default=None),
                   start_up_seconds=trial.start_up_seconds, loss=_loss(trial))

    @property
    def cost(self) -> float:
        """Seconds a sample; a step, where the samples are not known."""
        return self.step_seconds / (self.samples_a_step or 1.0)


def _communication(trial: Trial) -> float | None:
    """All communication of a step. It is sampled, and not of every kind: what the steps waited for is a part of it."""
    totals = [rank.communication_total for rank in trial.ranks if rank.communication_total is not None]
    return max(statistics.fmean(totals), trial.split["communication"]) if totals and trial.split else None


def _waiting(trial: Trial) -> float | None:
    """The slowest rank waits for the transport alone, and the others for that rank too."""
    if not trial.split:
        return None
    return trial.split["communication"] - min(rank.split["communication"] for rank in trial.ranks)


def _loss(trial: Trial) -> float | None:
    """The loss of the last step; NaN where it is known to be no finite number."""
    if not any(rank.loss_weight for rank in trial.ranks):
        return None
    return math.nan if trial.loss is None else trial.loss


@dataclass(frozen=True, kw_only=True)
class Series:
    """One layout over the rounds, numbered from 0; a round in which it failed is missing."""

    layout: Layout
    rounds: Mapping[int, Measured] = field(default_factory=dict)
    failure: str = ""

    @property
    def costs(self) -> dict[int, float]:
        return {number: each.cost for number, each in self.rounds.items()}


def over(jobs: Iterable[Measured], value: Callable[[Measured], float | None]) -> list[float]:
    """A number of each job that has it."""
    return [found for each in jobs if (found := value(each)) is not None]


def median(jobs: Iterable[Measured], value: Callable[[Measured], float | None]) -> float | None:
    """The median over jobs; None where it was not measured."""
    found = over(jobs, value)
    return statistics.median(found) if found else None


def reason(failure: str) -> str:
    """What happened, in a line: the first one, or what an error of ours said where that has but the error's name."""
    head, *rest = [line.strip() for line in failure.strip().splitlines()] or [""]
    return " ".join(rest[:2]) if rest and re.search(r" failed: \w+$", head) else head
