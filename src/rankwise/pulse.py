"""The pulse of this process: what it has done so far, for a thread that watches whether the training moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Pulse:
    """Counts that the training raises and a watching thread reads; nobody waits for anybody.

    `beats` are signs of progress of any kind: a batch, a collective that is through, a step. `steps` are the updates of
    the weights, `alone` names the work that this rank does while the others wait for it, and `is_over` says that the
    training has come to its end here.
    """

    def __init__(self) -> None:
        self.beats = 0
        self.steps = 0
        self.alone = ""
        self.is_over = False

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


PULSE = Pulse()
