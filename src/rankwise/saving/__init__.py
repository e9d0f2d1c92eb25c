"""Saving a training and going on from what was saved: when it can be, what of a run is kept, and how it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import nn

from rankwise import runfolder
from rankwise.checkpoint.ranks import Checkpoints
from rankwise.checkpoint.retention import Retention
from rankwise.data.loader import Loader
from rankwise.errors import CheckpointError, MisuseError, Preempted
from rankwise.group import Group
from rankwise.inhand import InHand
from rankwise.modes import Mode
from rankwise.monitor import Monitor
from rankwise.prepared import Prepared
from rankwise.pulse import PULSE
from rankwise.saving.due import Due
from rankwise.settings import Settings
from rankwise.step import Stepper
from rankwise.stepagreement import STOP, StepAgreement

_PATIENCE_SECONDS = 1.0


class Parts(NamedTuple):
    """What of a run a checkpoint holds, and whom it tells."""

    group: Group
    agreement: StepAgreement
    mode: Mode
    monitor: Monitor
    stepper: Stepper
    prepared: Prepared
    in_hand: InHand[Loader]


class Saving:
    """The checkpoints of one training. Every rank calls every method at the same place."""

    def __init__(self, parts: Parts, settings: Settings, folder: Path, resume_from: Path | None) -> None:
        self.loaders: list[Loader] = []   # those whose position is kept
        self.resume_from = resume_from
        self._parts = parts
        metric, larger_is_better = settings.best_metric
        self._retention = Retention(last=settings.keep_last or (1 if metric else None), metric=metric,
                                    larger_is_better=larger_is_better)
        self._told_of_metric: set[bool] = set()
        self._checkpoints = Checkpoints(folder / runfolder.CHECKPOINTS, parts.group, retention=self._retention,
                                        limit_seconds=settings.timeout)
        self.due = Due(settings, parts.group, parts.agreement, parts.in_hand)
        self._init = settings.init
        self._begins_from: Path | None = None
        self._has_begun = self._is_finished = False

    def after_step(self, steps: int) -> None:
        """Note what is due at this step; and say what became of the last checkpoint."""
        for line in self._checkpoints.news():
            self._parts.monitor.print(line)
        self.due.after_step(steps)

    def grant(self, epoch: int, steps: int, *, is_in_step: bool) -> None:
        """Do what is due; at the next place where it can be done, if it cannot here.

        Raises Preempted where the ranks are to stop.
        """
        if not self.due.wishes or self.obstacle(is_in_step) is not None:
            return
        wishes = self.due.take()
        if STOP not in wishes:
            self.save(epoch, steps, is_in_step=is_in_step)
            return
        try:
            self.save(epoch, steps, is_in_step=is_in_step, wait=True)
        except CheckpointError as error:
            self._parts.monitor.print(f"{error.given} {error.truth}")
        else:
            run = self._checkpoints.run_name
            self._parts.monitor.print(f"asked to end: saved at step {steps}; to go on: --resume {run}")
        raise Preempted

    def save(self, epoch: int, steps: int, *, is_in_step: bool, wait: bool = False) -> Path:
        """Take a checkpoint; returns its folder. See `Run.save`."""
        obstacle = self.obstacle(is_in_step)
        if obstacle is not None:
            raise obstacle
        with PULSE.saving():
            metrics = self._parts.monitor.metrics(steps)
            position = self._position(epoch, steps)
            folder, lines = self._checkpoints.save(steps, self._parts.prepared.things, position, metrics)
        self._parts.monitor.checkpointed(folder, steps, epoch)
        self.due.saved(steps)
        for line in [*lines, *self._on_metric(folder, metrics)]:
            self._parts.monitor.print(line)
        if wait:
            self._checkpoints.require_written(folder)
        return folder

    def _on_metric(self, folder: Path, metrics: dict[str, float | None]) -> list[str]:
        """Said once each: which value of the metric is the best, and that a checkpoint has none."""
        metric = self._retention.metric
        has_value = metric is not None and metrics.get(metric) is not None
        if metric is None or has_value in self._told_of_metric:
            return []
        if not has_value and self._parts.in_hand:   # in the middle of an epoch nobody expects one
            return []
        self._told_of_metric.add(has_value)
        if has_value:
            return [f"keep-best: a {'larger' if self._retention.larger_is_better else 'smaller'} {metric} is better"]
        there = ", ".join(name for name, value in metrics.items() if value is not None) or "none"
        return [f"keep-best: {folder.name} has no {metric} (it has: {there}). Compared are the checkpoints that are "
                f"saved right after run.log({metric}=...), before another step."]

    def finish(self, limit_seconds: float | None = None) -> None:
        """Let the last checkpoint get to the disk, and say what must be known of them all. Waits for no other rank."""
        if self._is_finished:
            return
        with PULSE.working_alone("the writing of the last checkpoint"):   # which is no stall
            if not self._checkpoints.settles_within(_PATIENCE_SECONDS):
                self._parts.monitor.tell("waiting for the last checkpoint to get to the disk")
            lines = [*self._checkpoints.finish(limit_seconds), *self._checkpoints.summary()]
        for line in lines:
            self._parts.monitor.tell(line)
        if self._checkpoints.newest is not None:
            self._parts.monitor.saved()
        self._is_finished = True

    def obstacle(self, is_in_step: bool) -> MisuseError | None:
        """Why a checkpoint made now would lose something; the same on every rank."""
        if is_in_step:
            return MisuseError("run.save was called in the middle of a global batch.",
                               "The gradients of its first part would be lost.",
                               "Save where run.step returned True, or after the loop over the loader.")
        if any(loader not in self.loaders for loader in self._parts.in_hand.loaders()):
            return MisuseError("run.save was called in a loop over a loader that was made inside an epoch.",
                               "A checkpoint keeps the position of loaders that are there when the epochs begin.",
                               "Call run.loader before run.epochs, or save after the loop.")
        return None

    def _position(self, epoch: int, steps: int) -> dict[str, object]:
        """Where the training stands, as plain JSON values: an epoch whose data is used up counts as finished."""
        mid_epoch = bool(self._parts.in_hand)
        return {"epoch": epoch if mid_epoch else epoch + 1, "steps": steps,
                "loaders": [loader.state_dict() for loader in self.loaders],
                "scaler": self._parts.stepper.state_dict(), "layout": self._parts.mode.layout(),
                "progress": self._parts.monitor.state_dict() if mid_epoch else None}

    def export(self, path: Path) -> None:
        """Write the first prepared model's weights; see `Run.export`."""
        self._checkpoints.export(self._parts.prepared.first_model(), path)
        self._parts.monitor.exported(path)

    def initialise(self, module: nn.Module) -> None:
        """Load the weights of `--init` into rank 0's `module`, where it is the first and the run is not resumed."""
        if self._init is None:
            return
        source, self._init = self._init, None
        folder = self._beginning()
        if folder is not None:
            self._parts.monitor.print(f"--init is left aside: the run goes on from {folder}")
            return
        self._checkpoints.initialise(module, Path(source))
        self._parts.monitor.print(f"weights from {source}")

    def _beginning(self) -> Path | None:
        """The checkpoint that the run goes on from; looked for once, and what is passed over is said."""
        if not self._has_begun:
            self._has_begun = True
            self._begins_from, passed_over = self._checkpoints.begin(self.resume_from)
            for error in passed_over:
                self._parts.monitor.print(f"passed over: {error.given} {error.truth}")
            if passed_over and self._begins_from is None:
                self._parts.monitor.print("no checkpoint is sound: the training starts afresh")
        return self._begins_from

    def restore(self) -> tuple[int, int]:
        """Bring back all that was prepared where the run is resumed; returns the epoch and the steps to go on from."""
        monitor, folder = self._parts.monitor, self._beginning()
        if folder is None:
            return 0, 0
        position = self._checkpoints.load(folder, self._parts.prepared.things)
        self._parts.stepper.load_state_dict(position["scaler"])
        for loader, state in zip(self.loaders, position["loaders"], strict=False):
            loader.load_state_dict(state)
        epoch, steps = position["epoch"], position["steps"]
        self.due.saved(steps)
        self._parts.group.at_step(steps)
        PULSE.steps_before = steps
        monitor.resumed(folder, epoch, steps, position["progress"])
        for line in self._parts.mode.resumed(position["layout"]):
            monitor.print(line)
        return epoch, steps
