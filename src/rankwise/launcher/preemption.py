"""Asked to end: a rank's part when the system takes its machine away. All ranks save at one step, and end with 75.

A scheduler sends SIGTERM or SIGUSR1 (Slurm, Kubernetes, spot instances). `rankwise run` passes it on to its ranks as
SIGUSR1, since the SIGTERM of torch's elastic agent means something else there: it tidies up after a failure. Ranks of
other launchers listen to both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise import environment, runfolder
from rankwise.errors import EXIT_PREEMPTED
from rankwise.stepagreement import STOP, StepAgreement

if TYPE_CHECKING:
    from rankwise.sidechannel import SideChannel

_POLL_SECONDS = 0.25
_LEAVE_SECONDS = 1.0   # the thread may wait for a store that is cut off
_WORD = "preempted"
PREEMPTED = ".preempted"   # suffix of the file that tells our launcher


@contextlib.contextmanager
def heeded(agreement: StepAgreement, channel: SideChannel | None, *, grace_seconds: float,
           run_folder: Path) -> Iterator[None]:
    """Within this block the first signal has all ranks save and end at one step; a second one interrupts this rank.

    Signals are heard in the main thread alone; what another rank heard counts in any. A rank of our own launcher is
    interrupted by that alone: Slurm gives one notice to all processes of a step, and the launcher passes it on besides.
    """
    ear = _Ear(agreement, channel, grace_seconds, run_folder)
    with _signals(ear):
        ear.thread.start()
        try:
            yield
        finally:
            ear.closing.set()
            ear.thread.join(_LEAVE_SECONDS)


class _Ear:
    """Waits beside the training for the signal, or for the word of a rank that got it."""

    def __init__(self, agreement: StepAgreement, channel: SideChannel | None, grace_seconds: float,
                 run_folder: Path) -> None:
        self._agreement, self._channel = agreement, channel
        self._grace_seconds, self._run_folder = grace_seconds, run_folder
        self.is_signalled = False
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._listen, name="rankwise-preemption", daemon=True)

    def signalled(self, number: int, frame: Any) -> None:
        if self.is_signalled and environment.job() is None:
            raise KeyboardInterrupt
        self.is_signalled = True

    def _listen(self) -> None:
        while not (self.is_signalled or self._others_are()):
            if self.closing.wait(_POLL_SECONDS):
                return
        self._tell_others()
        self._agreement.ask(STOP)
        if not self.closing.wait(self._grace_seconds):
            self._end_without_a_step()

    def _others_are(self) -> bool:
        try:
            return self._channel is not None and self._channel.read(_WORD) is not None
        except ConnectionError:   # the store went with the process that kept it; this rank's own signal counts still
            self._channel = None
            return False

    def _tell_others(self) -> None:
        with contextlib.suppress(ConnectionError):
            if self._channel is not None:
                self._channel.post(_WORD, "")

    def _end_without_a_step(self) -> None:
        """The main thread may be anywhere, native code included: the process ends from here."""
        newest = runfolder.newest_step(self._run_folder)
        if self._channel is None or self._channel.rank == 0:
            print(f"rankwise: asked to end, and no step ended within {self._grace_seconds:.0f} s. "
                  f"{'There is no checkpoint' if newest is None else f'The newest checkpoint is of step {newest}'}.",
                  file=sys.stderr)
        sys.stderr.flush()
        os._exit(exit_code())


def exit_code() -> int:
    """That of a rank which was preempted: 75, but 0 for our own launcher, which is told by a file beside.

    torch's agent takes any other code for a failure, stops the ranks that still save, and starts all again.
    """
    if environment.job() is None:
        return EXIT_PREEMPTED
    file = environment.error_file()
    if file is not None:
        file.with_suffix(PREEMPTED).touch()
    return 0


@contextlib.contextmanager
def _signals(ear: _Ear) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGUSR1] if environment.job() is not None else [signal.SIGUSR1, signal.SIGTERM]
    before = {number: signal.signal(number, ear.signalled) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
