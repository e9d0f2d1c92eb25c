"""When a checkpoint is due: by `--save-every`, and by what the ranks agreed to do at a step."""

from __future__ import annotations

import time

from rankwise.data.loader import Loader
from rankwise.group import Group
from rankwise.inhand import InHand
from rankwise.settings import Settings
from rankwise.stepagreement import NOTHING, SAVE, StepAgreement


class Due:
    """What is to be done at the end of a loop body, the same on every rank.

    In the body itself a checkpoint would miss what follows the update there: a schedule's step, an average of the
    weights, a second optimizer.
    """

    def __init__(self, settings: Settings, group: Group, agreement: StepAgreement, in_hand: InHand[Loader]) -> None:
        self._every_steps, self._every_seconds = settings.save_interval
        self._asks = group.is_main
        self._agreement, self._in_hand = agreement, in_hand
        self._saved_step, self._asked_at = 0, time.monotonic()
        self._loaders_of_step: list[Loader] = []
        self.wishes = NOTHING

    def after_step(self, steps: int) -> None:
        """Note what is due at this step."""
        due = self._agreement.due()
        if self._is_time(steps):
            due |= {SAVE}
        if due:
            self.wishes, self._loaders_of_step = self.wishes | due, self._in_hand.loaders()

    def _is_time(self, steps: int) -> bool:
        """Whether `--save-every` means this step. By the clock it is rank 0's that asks, and the ranks agree on one."""
        if self._every_steps is not None:
            return steps // self._every_steps > self._saved_step // self._every_steps
        if self._every_seconds is not None and time.monotonic() - self._asked_at >= self._every_seconds:
            self._asked_at = time.monotonic()
            if self._asks:
                self._agreement.ask(SAVE)
        return False

    def is_awaited(self, loader: Loader) -> bool:
        """Whether something is due at the end of a loop body over `loader`."""
        return bool(self.wishes) and loader in self._loaders_of_step

    def take(self) -> frozenset[str]:
        """What is due; it is no longer afterwards."""
        taken, self.wishes = self.wishes, NOTHING
        return taken

    def saved(self, steps: int) -> None:
        """A checkpoint of this step was made, or loaded: the next one is due an interval later."""
        self._saved_step, self._asked_at = steps, time.monotonic()
        self.wishes -= {SAVE}
