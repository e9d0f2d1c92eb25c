"""A thread beside each rank's steps, which may hang: it ends the rank when all is over, whatever the steps are at.

That of rank 0 reads what the others say, decides when it is over, and concludes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rankwise.doctor.ranks.attendance import Attendance
from rankwise.doctor.ranks.line import Line
from rankwise.doctor.ranks.report import Report
from rankwise.errors import EXIT_FAILED

_LOOK_SECONDS = 0.2
_LAST_SECONDS = 20.0    # beyond the limits of rank 0, which then is lost
_ASKED_SECONDS = 8.0    # for rank 0's last word, when the launcher asks to end


class Notice:
    """Whether the launcher has asked this process to end (SIGTERM), heard also while the steps hang in a library."""

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self.given_at: float | None = None

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is given."""
        if self.given_at is not None:
            time.sleep(seconds)
        elif select.select([self._heard], [], [], seconds)[0] and signal.SIGTERM in os.read(self._heard, 64):
            self.given_at = time.monotonic()


@contextlib.contextmanager
def noticed() -> Iterator[Notice]:
    """Within this block SIGTERM ends nothing, and is noted. Only in the main thread."""
    heard, said = os.pipe()
    os.set_blocking(said, False)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    earlier = signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    try:
        yield Notice(heard)
    finally:
        signal.set_wakeup_fd(earlier)
        signal.signal(signal.SIGTERM, before)
        os.close(heard)
        os.close(said)


class Watcher(threading.Thread):
    """`conclude` is given every rank's report on rank 0, and returns the exit code of all; `ended` is given that code
    on every rank, and returns the one that this process ends with, also where its steps hang.
    """

    def __init__(self, line: Line, notice: Notice, conclude: Callable[[list[Report]], int],
                 ended: Callable[[int], int], *, limit_seconds: float) -> None:
        super().__init__(name="rankwise-doctor", daemon=True)
        self._line, self._notice, self._conclude, self._ended = line, notice, conclude, ended
        self._limit_seconds = limit_seconds
        self._steps_are_over = threading.Event()
        self.exit_code = EXIT_FAILED

    def steps_are_over(self) -> int:
        """The steps are taken; wait for the end, and return the exit code."""
        self._steps_are_over.set()
        self.join()
        return self.exit_code

    def run(self) -> None:
        try:
            self.exit_code = self._ended(self._lead() if self._line.world.rank == 0 else self._follow())
        except ConnectionError as error:
            print(f"rankwise doctor: rank {self._line.world.rank} lost the store in which the ranks meet: {error}",  # noqa: T201
                  file=sys.stderr)
        if not self._steps_are_over.wait(_LOOK_SECONDS):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code)

    def _lead(self) -> int:
        size = self._line.world.size
        attendance = Attendance(size, limit_seconds=self._limit_seconds, now=time.monotonic())
        while not attendance.is_over(time.monotonic(), is_asked_to_end=self._notice.given_at is not None):
            for rank in attendance.missing():
                attendance.note(rank, self._line.step_of(rank), self._line.report_of(rank), time.monotonic())
            self._notice.wait(_LOOK_SECONDS)
        so_far = {rank: self._line.so_far(rank) for rank in attendance.missing()}
        code = self._conclude(attendance.reports({rank: each for rank, each in so_far.items() if each is not None}))
        self._line.end(code)
        self._line.exit_code()   # a store does not answer a set: one answered question later it has been heard
        self._notice.wait(2 * _LOOK_SECONDS if size > 1 else 0)   # where rank 0 keeps the store, the others hear it
        return code

    def _follow(self) -> int:
        """Wait for the end as rank 0 tells it, as long as rank 0 can be there."""
        moved_at, step = time.monotonic(), None
        while (code := self._line.exit_code()) is None:
            now, latest = time.monotonic(), self._line.step_of(0)
            if latest != step:
                moved_at, step = now, latest
            given_at = self._notice.given_at
            if now > moved_at + 2 * self._limit_seconds + _LAST_SECONDS or (
                    given_at is not None and now > given_at + _ASKED_SECONDS):
                where = f"it was last in: {step}" if step else "it never came"
                print(f"rankwise doctor: rank 0, which tells the result, is gone; {where}.", file=sys.stderr)  # noqa: T201
                return EXIT_FAILED
            self._notice.wait(_LOOK_SECONDS)
        return code
