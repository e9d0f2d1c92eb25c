"""Saving a training and going on from what was saved: when it can be, what of a run is kept, and how it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rankwise.checkpoint.state import Checkpoints
from rankwise.data.loader import Loader
from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.inhand import InHand
from rankwise.modes import Mode
from rankwise.monitor import Monitor
from rankwise.prepared import Prepared
from rankwise.step import Stepper


class Parts(NamedTuple):
    """What of a run a checkpoint holds, and whom it tells."""

    group: Group
    mode: Mode
    monitor: Monitor
    stepper: Stepper
    prepared: Prepared
    in_hand: InHand[Loader]


class Saving:
    """The checkpoints of one training. Every rank calls every method at the same place."""

    def __init__(self, parts: Parts, folder: Path, resume_from: Path | None) -> None:
        self.loaders: list[Loader] = []   # those whose position is kept
        self.resume_from = resume_from
        self._parts = parts
        self._checkpoints = Checkpoints(folder / "checkpoints", parts.group)

    def save(self, epoch: int, steps: int, *, is_in_step: bool) -> Path:
        """Write a checkpoint; returns its folder. See `Run.save`."""
        obstacle = self.obstacle(is_in_step)
        if obstacle is not None:
            raise obstacle
        folder = self._checkpoints.save(steps, self._parts.prepared.things, self._position(epoch, steps))
        self._parts.monitor.saved(folder)
        return folder

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

    def restore(self) -> tuple[int, int]:
        """Bring back all that was prepared where the run is resumed; returns the epoch and the steps to go on from."""
        if self.resume_from is None:
            return 0, 0
        monitor = self._parts.monitor
        folder, passed_over = self._checkpoints.find(self.resume_from)
        for error in passed_over:
            monitor.print(f"passed over: {error.truth}")
        position = self._checkpoints.load(folder, self._parts.prepared.things)
        self._parts.stepper.load_state_dict(position["scaler"])
        for loader, state in zip(self.loaders, position["loaders"], strict=False):
            loader.load_state_dict(state)
        epoch, steps = position["epoch"], position["steps"]
        self._parts.group.at_step(steps)
        monitor.resumed(folder, epoch, steps, position["progress"])
        for line in self._parts.mode.resumed(position["layout"]):
            monitor.print(line)
        return epoch, steps
