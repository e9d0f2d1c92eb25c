"""Runs every layout once a round, in an order that rotates, and the baseline twice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rankwise.compare.layouts import Choice, Layout
from rankwise.compare.measured import Measured, Series, reason
from rankwise.compare.scaling import Scaling
from rankwise.errors import RankwiseError

if TYPE_CHECKING:
    from rankwise.trials import Trial

T = TypeVar("T")

FEWEST_STEPS, MOST_STEPS = 30, 300
WARM_UP = 5   # updates before those that are measured: allocations, caches, and DDP's buckets laid out anew


class Runs(Protocol):
    """What runs a layout for some steps: `rankwise.trials.Trials`."""

    def run(self, *, steps: int, warm_up: int, tell: Callable[[int], None], arguments: Sequence[str],
            **changes: Any) -> Trial: ...


class CouldNotRunError(RankwiseError):
    """The baseline did not run, or nothing beside it, so there is nothing to compare."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The baseline, the same again (the control), and the other layouts in the order in which they were asked for."""

    baseline: Series
    control: Series
    others: Sequence[Series]


def order(slots: Sequence[T], turn: int, turns: int) -> list[T]:
    """The order of a round: rotated, so that over all rounds each slot is as early as it is late."""
    start = turn * len(slots) // turns
    return [*slots[start:], *slots[:start]]


def steps_of_a_second(runs: Runs, layout: Layout, scaling: Scaling, tell: Callable[[str, int], None]) -> int:
    """How many steps take about a second on this layout, from FEWEST_STEPS to MOST_STEPS; from a job of the fewest.

    Raises CouldNotRunError where that job fails, and what `runs` raises.
    """
    trial = _run(runs, layout, scaling, FEWEST_STEPS, partial(tell, f"{layout}, a first look"))
    if trial.failure:
        raise _baseline_failed(layout, trial.failure)
    return min(max(FEWEST_STEPS, math.ceil(1 / statistics.median(trial.step_seconds))), MOST_STEPS)


def measure(runs: Runs, choice: Choice, scaling: Scaling, *, steps: int, rounds: int,
            tell: Callable[[str, int], None]) -> Measurements:
    """Run and gather. A layout that fails is not run again; what it measured before stays.

    `tell` is given what runs now and its steps so far. Raises CouldNotRunError, and what `runs` raises.
    """
    control_at = (len(choice.others) + 1) // 2 + 1   # as far from the baseline as layouts are
    layouts = [choice.baseline, *choice.others]
    layouts.insert(control_at, choice.baseline)
    found = [Series(layout=layout) for layout in layouts]
    for turn in range(rounds):
        for place in order(range(len(found)), turn, rounds):
            series = found[place]
            if series.failure:
                continue
            what = f"{series.layout}{', again' * (place == control_at)}, round {turn + 1} of {rounds}"
            found[place] = series = _with(series, turn, _run(runs, series.layout, scaling, steps, partial(tell, what)))
            if series.failure and series.layout == choice.baseline:
                raise _baseline_failed(series.layout, series.failure)
        _require_others([series for series in found if series.layout != choice.baseline])
    control = found.pop(control_at)
    return Measurements(baseline=found[0], control=control, others=found[1:])


def _require_others(others: Sequence[Series]) -> None:
    if not any(series.rounds for series in others):
        raise CouldNotRunError("Nothing ran beside the baseline.",
                               "\n  ".join(f"{series.layout}: {reason(series.failure)}" for series in others),
                               "Run one of them by itself: rankwise run TARGET --mode MODE --devices N")


def _run(runs: Runs, layout: Layout, scaling: Scaling, steps: int, tell: Callable[[int], None]) -> Trial:
    return runs.run(steps=steps, warm_up=WARM_UP, tell=tell, arguments=scaling.arguments(layout.devices),
                    mode=layout.mode, devices=layout.devices, amp=layout.amp)


def _with(series: Series, turn: int, trial: Trial) -> Series:
    if trial.failure:
        return replace(series, failure=trial.failure)
    return replace(series, rounds={**series.rounds, turn: Measured.of(trial)})


def _baseline_failed(layout: Layout, failure: str) -> CouldNotRunError:
    return CouldNotRunError(f"{layout} failed, and that is the baseline.", failure.strip().replace("\n", "\n  "),
                            "Run it by itself first: rankwise run TARGET --devices 1")
