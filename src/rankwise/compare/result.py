"""The result of a comparison: a row of numbers for each layout, derived from what the rounds measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.compare.layouts import Layout, Refusal
from rankwise.compare.machine import Machine
from rankwise.compare.measured import Measured, Series, median, over, reason
from rankwise.compare.noise import is_beyond, middle, noise, ratios
from rankwise.compare.rounds import Measurements
from rankwise.compare.sameness import Sameness, judge
from rankwise.compare.scaling import Scaling
from rankwise.modes import MODES
from rankwise.stepparts import PARTS


@dataclass(frozen=True, kw_only=True)
class Row:
    """The numbers of one layout: medians over the rounds, with the lowest and highest round where that is said.

    `speed_up` is against the baseline: samples a second over its own (steps, where samples are not known);
    `efficiency` is the speed-up against one device in the same precision, a device. What is None was not measured.
    """

    layout: Layout
    is_baseline: bool
    rounds: int
    threads: int | None                  # of each process, on a CPU
    step_seconds: float
    lowest_step_seconds: float
    highest_step_seconds: float
    samples_a_second: float | None
    speed_up: float
    lowest_speed_up: float
    highest_speed_up: float
    noise: float                         # how far the speed-up may be off by chance, a share of it
    is_beyond_noise: bool
    efficiency: float | None
    split: Mapping[str, float] | None    # seconds a step
    communication_seconds: float | None  # a step, hidden or not
    waiting_seconds: float | None        # a step, for slower ranks: a part of the communication that is not hidden
    communication_meaning: str           # what counts as communication in this mode
    communication_from: str              # what the figures were taken from
    wire_bytes: float | None             # a step, sent by a rank
    first_memory_bytes: float | None
    most_memory_bytes: float | None
    start_up_seconds: float | None
    loss: float | None
    sameness: Sameness | None            # None for one device, which others are compared with
    failure: str = ""                    # why it has fewer rounds than the others


@dataclass(frozen=True, kw_only=True)
class Result:
    """All that a comparison found; the first row is the baseline."""

    target: str
    scaling: Scaling
    machine: Machine
    steps: int                      # asked for
    rounds: int
    measurements: Measurements
    refusals: Sequence[Refusal]

    @property
    def control(self) -> list[float]:
        """A/A: the cost of the baseline's second run in a round over that of the first."""
        return ratios(self.measurements.control.costs, self.measurements.baseline.costs)

    @property
    def measured_steps(self) -> int:
        """The fewest steps that a job measured: fewer than asked for where the training is shorter."""
        found = [self.measurements.baseline, *self.measurements.others]
        return min(each.steps for series in found for each in series.rounds.values())

    @property
    def rows(self) -> list[Row]:
        """The baseline, and each layout that ran, in the order asked for."""
        found = self.measurements
        return [self.row(found.baseline), *(self.row(series) for series in found.others if series.rounds)]

    @property
    def missing(self) -> list[Refusal]:
        """The layouts that could not run, and those that failed before they were measured once."""
        return [*self.refusals, *(Refusal(layout=series.layout, reason=reason(series.failure))
                                  for series in self.measurements.others if not series.rounds)]

    def costs(self, layout: Layout) -> Mapping[int, float]:
        """A layout's cost in each round; of the baseline the mean of its two runs."""
        found = self.measurements
        if layout == found.baseline.layout:
            return middle(found.baseline.costs, found.control.costs)
        return next(series.costs for series in found.others if series.layout == layout)

    def is_slower(self, ours: Layout, theirs: Layout) -> bool:
        """Whether our layout takes longer than theirs, by more than the noise."""
        found = ratios(self.costs(ours), self.costs(theirs))
        return is_beyond(found, self.control) and statistics.median(found) > 1

    def alone(self, amp: str) -> Series | None:
        """One device in this precision, where it ran."""
        found = (self.measurements.baseline, *self.measurements.others)
        return next((series for series in found
                     if series.layout.devices == 1 and series.layout.amp == amp and series.rounds), None)

    def row(self, series: Series) -> Row:
        """The numbers of one layout, which ran in at least one round; the baseline's are over all of its runs."""
        layout, alone = series.layout, self.alone(series.layout.amp)
        jobs = self._jobs(series)
        step = over(jobs, lambda each: each.step_seconds)
        rates = over(jobs, lambda each: 1 / each.cost if each.samples_a_step else None)
        ups = ratios(self.costs(self.measurements.baseline.layout), self.costs(layout))
        return Row(
            layout=layout, is_baseline=series is self.measurements.baseline, rounds=len(series.rounds),
            threads=self.machine.threads(layout.processes),
            step_seconds=statistics.median(step), lowest_step_seconds=min(step), highest_step_seconds=max(step),
            samples_a_second=statistics.median(rates) if rates else None,
            speed_up=statistics.median(ups), lowest_speed_up=min(ups), highest_speed_up=max(ups),
            noise=noise(ups, self.control) - 1, is_beyond_noise=is_beyond(ups, self.control),
            efficiency=self._efficiency(layout, alone),
            split=_split(jobs), communication_seconds=median(jobs, lambda each: each.communication_seconds),
            waiting_seconds=median(jobs, lambda each: each.waiting_seconds),
            communication_meaning=MODES[layout.mode].communication, communication_from=jobs[-1].communication_from,
            wire_bytes=median(jobs, lambda each: each.wire_bytes),
            first_memory_bytes=_largest(over(jobs, lambda each: each.first_memory_bytes)),
            most_memory_bytes=_largest(over(jobs, lambda each: each.most_memory_bytes)),
            start_up_seconds=median(jobs, lambda each: each.start_up_seconds),
            loss=median(jobs, lambda each: each.loss),
            sameness=self._sameness(series, alone), failure=reason(series.failure))

    def _jobs(self, series: Series) -> list[Measured]:
        again = self.measurements.control.rounds if series is self.measurements.baseline else {}
        return [*series.rounds.values(), *again.values()]

    def _efficiency(self, layout: Layout, alone: Series | None) -> float | None:
        if alone is None or layout.devices == 1:
            return None
        return statistics.median(ratios(self.costs(alone.layout), self.costs(layout))) / layout.devices

    def _sameness(self, series: Series, alone: Series | None) -> Sameness | None:
        if self.scaling.is_weak or alone is None or series.layout.devices == 1:
            return None
        ours, theirs = ([each.loss for each in self._jobs(one)] for one in (series, alone))
        return judge(ours, theirs, amp=series.layout.amp)


def _split(jobs: Sequence[Measured]) -> dict[str, float] | None:
    found = [each.split for each in jobs if each.split is not None]
    return {phase: statistics.median(each[phase] for each in found) for phase in PARTS} if found else None


def _largest(found: Sequence[float]) -> float | None:
    return max(found, default=None)
