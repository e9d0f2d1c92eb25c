"""The launcher's signals: a notice to end is passed on to the ranks, which save; an interrupt ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rankwise.errors import EXIT_PREEMPTED

_LAST_WORD_SECONDS = 5.0   # beyond the grace, after which a rank ends itself


class Terminated(KeyboardInterrupt):
    """This launcher was told to end, and nothing can be saved; like Ctrl-C in all else."""


class Notice:
    """The system's notice to end (SIGTERM, SIGUSR1). Ranks that heed it have the grace to save and end in.

    Where they do not heed it, and when it is given again, it is an interrupt.
    """

    def __init__(self, grace_seconds: float = 0.0, *, heeded: bool = False) -> None:
        self._grace_seconds, self._heeded = grace_seconds, heeded
        self._given_at: float | None = None
        self._told: set[int] = set()
        self._is_acknowledged = False

    @property
    def is_given(self) -> bool:
        return self._given_at is not None

    @property
    def is_over(self) -> bool:
        """Whether the grace has passed, and the last moment in which a rank that took no step ends itself."""
        return self._given_at is not None and (
            time.monotonic() - self._given_at > self._grace_seconds + _LAST_WORD_SECONDS)

    def give(self) -> None:
        if self.is_given or not self._heeded:
            raise Terminated
        self._given_at = time.monotonic()

    def acknowledge(self) -> None:
        """Say once that it was heard."""
        if self.is_given and not self._is_acknowledged:
            self._is_acknowledged = True
            print("rankwise: asked to end. The ranks save at the next step that all of them can still take, within "
                  f"{self._grace_seconds:.0f} s; asked again, they end at once.", file=sys.stderr, flush=True)

    def interrupted(self) -> None:
        """The launcher ends its ranks: what they end with is no failure."""
        self._given_at = self._given_at or time.monotonic()

    def pass_on(self, pids: set[int]) -> None:
        """Tell each rank once, and the rank alone: its data workers are needed until it has saved."""
        if not self.is_given:
            return
        for pid in pids - self._told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        self._told |= pids


def ended_before_it_began() -> None:
    """From here until another handler is set, the notice ends this process, which has begun nothing yet."""
    def noticed(number: int, frame: Any) -> None:
        os.write(2, b"rankwise: asked to end, before the run began.\n")
        os._exit(EXIT_PREEMPTED)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, noticed)


@contextlib.contextmanager
def handled(notice: Notice) -> Iterator[None]:
    """In the main thread SIGTERM and SIGUSR1 are notices, SIGHUP and Ctrl-C interrupts; as before afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def noticed(number: int, frame: Any) -> None:
        notice.give()

    def terminated(number: int, frame: Any) -> None:
        raise Terminated

    handlers = {signal.SIGTERM: noticed, signal.SIGUSR1: noticed, signal.SIGHUP: terminated,
                signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
