"""The pulse of this process: what it has done so far, for a thread that watches whether the training moves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Pulse:
    """Counts that the training raises and a watching thread reads; nobody waits for anybody.

    `beats` are signs of progress of any kind: a batch, a collective that is through, a step. `steps` are the updates of
    the weights, `epoch` counts from 0 (None: not known), `phase` gives the name of the part of a step that is under way
    (nothing where nobody keeps a ledger), `alone` names the work that this rank does while the others wait for it,
    `is_saving` says that the training waits for a checkpoint, and `is_over` that it has come to its end here.
    """

    def __init__(self) -> None:
        self.beats = 0
        self.steps = 0
        self.steps_before = 0   # in earlier starts of the run
        self.epoch: int | None = None
        self.phase: Callable[[], str] = str
        self.alone = ""
        self.is_saving = self.is_over = False

    def beat(self) -> None:
        """Something was done. Two threads may lose a count between them: what matters is that it changes."""
        self.beats += 1

    def at_step(self, steps: int) -> None:
        """The weights have been updated so often."""
        self.steps = steps
        self.beats += 1

    @contextlib.contextmanager
    def working_alone(self, place: str) -> Iterator[None]:
        """Within this block the other ranks wait for this one, and know why."""
        self.alone = place
        try:
            yield
        finally:
            self.alone = ""
            self.beats += 1

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Within this block the training waits: its state is copied, or the checkpoint before is yet to be written."""
        self.is_saving = True
        try:
            yield
        finally:
            self.is_saving = False


PULSE = Pulse()
