"""How long ago the training of this process last moved.

It moves where its pulse beats, and where its main thread computes without giving a sign: an evaluation in plain Python
is no stall. Waiting for another rank costs no processor time, but for a GPU's driver, which waits in a spin; so where a
GPU is in use only the pulse counts. A rank alone waits for no other: whatever computes in its process is progress, and
what computes in its child processes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from rankwise.pulse import Pulse

_STOPPED_SECONDS = 5.0   # between two looks: this process was stopped as a whole, and the time does not count
_CHILDREN_SECONDS, _CHILDREN_LOOKS = 0.5, 4
_BUSY = 0.2   # of a core, of the main thread: polling loops stay far below, computing on a crowded machine above


class Pace:
    """Looked at now and then by the watching thread, of a rank that may be alone.

    `computes` is of the main thread, or of all where the rank is alone, between the last two looks.
    """

    def __init__(self, pulse: Pulse, *, is_alone: bool = False) -> None:
        self._pulse, self._is_alone = pulse, is_alone
        self._beats = pulse.beats
        self._clock = time.CLOCK_PROCESS_CPUTIME_ID if is_alone else _clock_of_main_thread()
        self._looked_at = self._moved_at = time.monotonic()
        self._used_seconds = self._processor_seconds()
        self.computes = False

    def look(self) -> None:
        """Note whether the training has moved since the last look."""
        now, used = time.monotonic(), self._processor_seconds()
        if now - self._looked_at > _STOPPED_SECONDS:
            self._moved_at += now - self._looked_at
        self.computes = used - self._used_seconds > _BUSY * (now - self._looked_at)
        if self._pulse.beats != self._beats:
            self._beats, self._moved_at = self._pulse.beats, now
        elif self.computes and (self._is_alone or not _uses_gpu()):
            self._moved_at = now
        self._looked_at, self._used_seconds = now, used

    def note(self) -> None:
        """It has moved, as was found out elsewhere."""
        self._moved_at = self._looked_at

    @property
    def idle_seconds(self) -> float:
        return self._looked_at - self._moved_at

    def _processor_seconds(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


def children_compute() -> bool:
    """Whether the processes that this one has started are at work. Takes half a second; where they do not seem to, two,
    for on a crowded machine they may have to wait for their turn.
    """
    return any(_children_computed() for _ in range(_CHILDREN_LOOKS))


def _children_computed() -> bool:
    before = _seconds_of_children()
    time.sleep(_CHILDREN_SECONDS)
    return _seconds_of_children() - before > _BUSY * _CHILDREN_SECONDS


def _clock_of_main_thread() -> int | None:
    """The clock of the main thread's processor time, where the system has one."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    main = threading.main_thread().ident
    return None if clock_of is None or main is None else clock_of(main)


def _seconds_of_children() -> float:
    """The processor time of all processes that descend from this one and have not ended."""
    import psutil
    used = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            used += times.user + times.system
    return used


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()
