"""How long ago the training of this process last moved.

It moves where its pulse beats, and where its main thread computes without giving a sign: an evaluation in plain Python
is no stall. Waiting for another rank costs no processor time, but for a GPU's driver, which waits in a spin; so where a
GPU is in use only the pulse counts.
"""

from __future__ import annotations

import sys
import threading
import time

from rankwise.pulse import Pulse

_STOPPED_SECONDS = 5.0   # between two looks: this process was stopped as a whole, and the time does not count
_BUSY = 0.2   # of a core, of the main thread: polling loops stay far below, computing on a crowded machine above


class Pace:
    """Looked at now and then by the watching thread. `computes` is of the main thread, between the last two looks."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._beats = pulse.beats
        self._clock = _processor_clock()
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
        elif self.computes and not _uses_gpu():
            self._moved_at = now
        self._looked_at, self._used_seconds = now, used

    @property
    def idle_seconds(self) -> float:
        return self._looked_at - self._moved_at

    def _processor_seconds(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


def _processor_clock() -> int | None:
    """The clock of the main thread's processor time, where the system has one."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    main = threading.main_thread().ident
    return None if clock_of is None or main is None else clock_of(main)


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()
