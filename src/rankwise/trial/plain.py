"""A trial of a script that does not use rankwise: its steps are timed from outside, at the updates of its weights.

What happens inside a step is not seen, nor are samples and losses.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from rankwise.monitor.memory import peak_memory_bytes
from rankwise.trial.plan import TrialPlan
from rankwise.trial.result import Progress, RankTrial, TrialOver
from rankwise.world import World


class PlainTrial:
    """Counts the updates by the first optimizer that makes one, and ends the script after the last of the trial.

    A step lasts from one update to the next, whatever the script does between them.
    """

    def __init__(self, plan: TrialPlan, world: World) -> None:
        self._plan, self._world = plan, world
        self._counted: torch.optim.Optimizer | None = None
        self._moments: list[Any] = []
        self._steps, self._first_step_at = 0, 0.0
        self._progress = Progress(Path(plan.folder)) if world.is_main else None

    def attach(self) -> torch.utils.hooks.RemovableHandle:
        """Stand behind every optimizer of torch from here on, until the handle is removed."""
        return register_optimizer_step_post_hook(self._updated)

    def _updated(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._counted = self._counted or optimizer
        if optimizer is not self._counted:
            return
        self._steps += 1
        device = _device_of(optimizer)
        if self._steps == 1:
            _synchronise(device)
            self._first_step_at = time.time()
        if self._steps >= self._plan.warm_up:
            self._moments.append(_moment(device))
        if self._progress is not None:
            self._progress.tell(self._steps)
        if self._steps == self._plan.warm_up + self._plan.steps:
            self._write(device)
            raise TrialOver

    def _write(self, device: torch.device) -> None:
        _synchronise(device)
        seconds = [_seconds_between(*pair) for pair in zip(self._moments, self._moments[1:], strict=False)]
        RankTrial(rank=self._world.rank, world_size=self._world.size, mode="", first_step_at=self._first_step_at,
                  step_seconds=seconds,
                  micro_batches=self._plan.steps, memory_bytes=peak_memory_bytes(device)
                  ).write(Path(self._plan.folder))


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    return next((parameter.device for group in optimizer.param_groups for parameter in group["params"]),
                torch.device("cpu"))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _moment(device: torch.device) -> Any:
    """Now, in seconds of the host's clock; on CUDA an event, for nobody waits for the device here."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _seconds_between(first: Any, second: Any) -> float:
    return float(second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3)
