"""The trials of a plan: one training on one device, at a few sizes of a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise.errors import RankwiseError
from rankwise.plan.computation import Computation, computation_of, rows_of
from rankwise.plan.memory import Memory, peak_of

if TYPE_CHECKING:
    from rankwise.trials import RankTrial, Trial, Trials

_SIZES = 5
_FEWEST_STEPS = 5   # of a trial whose steps have many micro-batches
_WARM_UP_STEPS = 3
_BOUNDS = (None, 64, 8, 1)   # for the first trial; the next one where memory runs out

Tell = Callable[[str, int], None]
"""Is told which trial runs, and how many steps it has made."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A training on one device: its own global batch, what it computes, and what it holds."""

    global_batch: int
    computation: Computation
    memory: Memory
    parameters: int


def measure(trials: Trials, most_devices: int, *, steps: int, capacity_bytes: int | None, tell: Tell) -> Measured:
    """Run the trials for plans of up to `most_devices`.

    Raises RankwiseError where the training fails on one device.
    """
    first = _first(trials, steps, tell)
    batch = first.global_batch
    found = [first]
    for rows in sizes(batch, most_devices):
        if rows < rows_of(first):
            found.append(_trial(trials, rows, _steps(steps, batch, rows), tell))
    return Measured(global_batch=batch, computation=computation_of(found), memory=_memory(found, capacity_bytes),
                    parameters=first.model["parameters"])


def sizes(batch: int, most_devices: int) -> list[int]:
    """Rows of the micro-batches to measure, falling: from the whole batch to the slice of so many devices.

    In equal ratios, at most five, and no two nearer than a factor of two.
    """
    least = -(-batch // most_devices)
    doublings = math.log2(batch / least)
    count = min(_SIZES, 1 + math.ceil(doublings))
    return sorted({round(batch / 2 ** (doublings * number / max(1, count - 1))) for number in range(count)},
                  reverse=True)


def _steps(steps: int, batch: int, rows: int) -> int:
    """Fewer where a step has more micro-batches, so that all trials take about as long."""
    return max(_FEWEST_STEPS, round(steps * rows / batch))


def _first(trials: Trials, steps: int, tell: Tell) -> RankTrial:
    """A trial with the whole batch at once, or with as much as fits in memory."""
    for bound in _BOUNDS:
        trial = _run(trials, bound, steps if bound is None else _FEWEST_STEPS, tell)
        if not trial.failure:
            return trial.ranks[0]
        if "out of memory" not in trial.failure.lower():
            break
    raise RankwiseError("The training could not be measured on one device.", _reason(trial),
                        "`rankwise run` on one device shows more of it.")


def _trial(trials: Trials, rows: int, steps: int, tell: Tell) -> RankTrial:
    trial = _run(trials, rows, steps, tell)
    if trial.failure:
        raise RankwiseError(f"The training failed with micro-batches of {rows} samples.", _reason(trial),
                            f"`rankwise run` with --micro-batch {rows} shows more of it.")
    return trial.ranks[0]


def _reason(trial: Trial) -> str:
    """Without the traceback."""
    return trial.failure.splitlines()[0]


def _run(trials: Trials, bound: int | None, steps: int, tell: Tell) -> Trial:
    what = "whole batches" if bound is None else f"micro-batches of {bound}"
    return trials.run(mode="single", devices=1, micro_batch=bound, steps=steps, warm_up=_WARM_UP_STEPS,
                      arrivals=True, tell=lambda step: tell(what, step))


def _memory(trials: Sequence[RankTrial], capacity_bytes: int | None) -> Memory:
    model = trials[0].model
    return Memory(parameter_bytes=model["parameter_bytes"], gradient_bytes=model["gradient_bytes"],
                  optimizer_bytes=model["optimizer_bytes"], buffer_bytes=model["buffer_bytes"],
                  peak=peak_of([(rows_of(trial), float(trial.memory_bytes[0])) for trial in trials]),
                  capacity_bytes=capacity_bytes)
