"""Where the events of a run stand on a horizontal axis: in epochs, and in seconds of its running."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rankwise.history import Event, History, Numbers, Start


class Timeline:
    """Places of one run's events.

    Epochs: 1.5 is the middle of the second one. An epoch's length in steps is known when it has ended; one that has not
    is taken to be as long as the one before. A run that goes on from another one's checkpoint begins there. Seconds
    count from the first start. What lies between the end of a launch and a later one that resumes it is left out; a
    restart by the launcher is not, for the run waited for it.
    """

    def __init__(self, history: History) -> None:
        self._ends = {event.epoch: event.step for event in history.numbers if "epoch_loss" in event.values}
        self._begins = {start.epoch: start.step for start in reversed(history.starts)}
        self._pauses = list(_pauses(history.events))
        times = [event.time for event in history.events if event.time is not None]
        self._began = times[0] if times else None

    @property
    def has_epochs(self) -> bool:
        """Whether the length of an epoch is known, so that steps are parts of one."""
        return bool(self._ends)

    @property
    def has_seconds(self) -> bool:
        return self._began is not None

    def epochs(self, event: Event) -> float:
        """Epochs that were over at this event's step; to be asked for where there are any."""
        epoch = event.epoch if event.epoch in self._ends else max(self._ends)
        length = self._ends[epoch] - self._begin(epoch)
        return event.epoch + (event.step - self._begin(event.epoch)) / length if length > 0 else float(event.epoch)

    def _begin(self, epoch: int) -> int:
        """The step after which an epoch began."""
        return self._ends.get(epoch - 1, self._begins.get(epoch, 0))

    def seconds(self, event: Event) -> float | None:
        """Seconds of running up to this event; None where it has no time."""
        if event.time is None or self._began is None:
            return None
        return event.time - self._began - sum(end - begin for begin, end in self._pauses if end <= event.time)


def _pauses(events: Sequence[Event]) -> list[tuple[float, float]]:
    """When no launcher ran: from the last word before a launch to its start."""
    timed = [event for event in events if event.time is not None]
    return [(before.time, after.time) for before, after in pairwise(timed)
            if isinstance(after, Start) and after.attempt == 0 and before.time is not None and after.time is not None]


def of_same_names(numbers: Sequence[Numbers]) -> dict[str, list[Numbers]]:
    """The entries that have a number of this name, for each name, in the order in which the names came up."""
    found: dict[str, list[Numbers]] = {}
    for event in numbers:
        for name in event.values:
            found.setdefault(name, []).append(event)
    return found
