"""Runs every layout once a round, in an order that rotates, and the baseline twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rankwise.compare.layouts import Choice, Layout
from rankwise.compare.measured import Measured, Series, reason
from rankwise.compare.scaling import Scaling
from rankwise.errors import RankwiseError

if TYPE_CHECKING:
    from rankwise.trials import Trial

T = TypeVar("T")

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


def measure(runs: Runs, choice: Choice, scaling: Scaling, *, steps: int, rounds: int,
            tell: Callable[[str, int], None]) -> Measurements:
    """Run and gather. A layout that fails is not run again; what it measured before stays.

    `tell` is given what runs now and its steps so far. Raises CouldNotRunError, and what `runs` raises.
    """
    half = (len(choice.others) + 1) // 2   # the control stands as far from the baseline as layouts do
    slots = [choice.baseline, *choice.others[:half], choice.baseline, *choice.others[half:]]
    found = [Series(layout=layout) for layout in slots]
    for turn in range(rounds):
        for number in order(range(len(slots)), turn, rounds):
            series = found[number]
            if series.failure:
                continue
            what = f"{series.layout}{', again' * (number == half + 1)}, round {turn + 1} of {rounds}"
            trial = _run(runs, series.layout, scaling, steps, _telling(tell, what))
            found[number] = _with(series, turn, trial)
            if series.layout is choice.baseline and trial.failure:
                raise CouldNotRunError(f"{series.layout} failed, and that is the baseline.",
                                       trial.failure.strip().replace("\n", "\n  "),
                                       "Run it by itself first: rankwise run TARGET --devices 1")
        _require_others([series for series in found if series.layout is not choice.baseline])
    control = found.pop(half + 1)
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


def _telling(tell: Callable[[str, int], None], what: str) -> Callable[[int], None]:
    return lambda steps: tell(what, steps)
