"""What a trial found, over all of its ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.trial.result import RankTrial

__all__ = ["RankTrial", "Trial", "read"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`ranks` in order of rank; empty, and `failure` not, where the job did not come through its steps."""

    ranks: Sequence[RankTrial] = ()
    failure: str = ""
    start_up_seconds: float | None = None
    """From the launch to the end of the first step on the slowest rank."""

    @property
    def step_seconds(self) -> list[float]:
        """Of each measured step, on its slowest rank."""
        return [max(seconds) for seconds in zip(*(rank.step_seconds for rank in self.ranks), strict=True)]

    @property
    def split(self) -> dict[str, float]:
        """Mean seconds a step by phase, over the ranks."""
        names = self.ranks[0].split if self.ranks else {}
        return {name: statistics.fmean(rank.split[name] for rank in self.ranks) for name in names}

    @property
    def samples_per_second(self) -> float | None:
        """None where the samples are not known."""
        seconds, samples = sum(self.step_seconds), self.ranks[0].samples if self.ranks else 0
        return samples / seconds if samples and seconds > 0 else None

    @property
    def loss(self) -> float | None:
        """Mean loss of the last step over all ranks; None where it is not known or no finite number."""
        weight = sum(rank.loss_weight for rank in self.ranks)
        parts = [rank.loss for rank in self.ranks]
        if not weight or None in parts:
            return None
        return math.fsum(part for part in parts if part is not None) / weight


def read(folder: Path, world_size: int, *, launched_at: float, failure: str, wanted_steps: int) -> Trial:
    """What the ranks left in `folder`; `launched_at` in Unix seconds."""
    found = [RankTrial.read(folder, rank) for rank in range(world_size)]
    ranks = [rank for rank in found if rank is not None]
    if failure or not ranks or len(ranks) < world_size:
        return Trial(failure=failure or f"The training ended before the {wanted_steps} steps of a trial were done. "
                                        "Ask for fewer steps, or for more epochs.")
    return Trial(ranks=ranks, start_up_seconds=max(rank.first_step_at for rank in ranks) - launched_at)
