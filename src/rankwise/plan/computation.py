"""What computing costs on one device: a micro-batch by its rows, the update, and when gradients arrive."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rankwise.errors import MisuseError
from rankwise.plan.buckets import Gradient
from rankwise.plan.curves import Curve

if TYPE_CHECKING:
    from rankwise.trials import RankTrial

_OF_AN_UPDATE = "optimizer"
_NORMAL = 1.4826   # a normal distribution's standard deviation, in median absolute deviations


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Seconds on one device, without any communication.

    `micro_batch_seconds` holds data, forward, backward and what is beside them, `backward_seconds` the backward alone;
    both are curves over the rows of a micro-batch. `gradients` are in order of arrival. `noise` is the largest
    standard error of a measured median, as a share of it.
    """

    micro_batch_seconds: Curve
    backward_seconds: Curve
    update_seconds: float
    gradients: tuple[Gradient, ...]
    noise: float = 0.0

    def error(self, rows: float) -> float:
        """The share by which the seconds may be off: the steps' noise, or what lies between the measured sizes."""
        return max(self.noise, self.micro_batch_seconds.bend(rows))

    def slower_by(self, share: float) -> Computation:
        """The same where all takes (1 + `share`) times as long."""
        return replace(self, micro_batch_seconds=_scaled(self.micro_batch_seconds, 1 + share),
                       backward_seconds=_scaled(self.backward_seconds, 1 + share),
                       update_seconds=self.update_seconds * (1 + share))


def _scaled(curve: Curve, factor: float) -> Curve:
    return Curve(tuple((size, value * factor) for size, value in curve.points))


def computation_of(trials: Sequence[RankTrial]) -> Computation:
    """What trials on one device at several sizes of a micro-batch say.

    A step is counted by its median, of which each phase has its share of the mean: a machine that was busy with
    something else for a moment does not count. Gradients are those of the smallest micro-batch, the likeliest slice.
    """
    scaled = {id(trial): _typical_split(trial) for trial in trials}
    micro_batches = [(rows_of(trial), sum(seconds for phase, seconds in scaled[id(trial)].items()
                                          if phase != _OF_AN_UPDATE) / bodies_of(trial)) for trial in trials]
    backward = [(rows_of(trial), scaled[id(trial)]["backward"] / bodies_of(trial)) for trial in trials]
    return Computation(
        micro_batch_seconds=Curve.of(micro_batches), backward_seconds=Curve.of(backward),
        update_seconds=statistics.median(split[_OF_AN_UPDATE] for split in scaled.values()),
        gradients=_gradients(min(trials, key=rows_of)), noise=max(_noise(trial.step_seconds) for trial in trials))


def rows_of(trial: RankTrial) -> float:
    """Rows of a micro-batch, the mean over those of a whole global batch."""
    return trial.global_batch / bodies_of(trial)


def bodies_of(trial: RankTrial) -> int:
    """Micro-batches of a step: of most steps, for the last one of an epoch may have fewer rows."""
    return round(trial.micro_batches / len(trial.step_seconds))


def _typical_split(trial: RankTrial) -> dict[str, float]:
    factor = statistics.median(trial.step_seconds) / statistics.mean(trial.step_seconds)
    return {phase: seconds * factor for phase, seconds in trial.split.items()}


def _noise(step_seconds: Sequence[float]) -> float:
    """The standard error of the median of these, as a share of it: sqrt(pi / 2) of that of a mean."""
    median = statistics.median(step_seconds)
    deviation = _NORMAL * statistics.median(abs(each - median) for each in step_seconds)
    return math.sqrt(math.pi / 2 / len(step_seconds)) * deviation / median


def _gradients(trial: RankTrial) -> tuple[Gradient, ...]:
    """The gradients with their arrival as a share of the backward; raises MisuseError where none came."""
    if not trial.arrivals:
        raise MisuseError("The training has no gradients.", "No parameter had one when a step ended.",
                          "Prepare the model and its optimizer with run.prepare.")
    backward = max(trial.split["backward"] / bodies_of(trial), trial.arrivals[-1][1])
    return tuple(Gradient(size_bytes=size, ready=seconds / backward) for size, seconds in trial.arrivals)
