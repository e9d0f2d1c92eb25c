"""Writes one checkpoint at a time in a thread beside the training, and keeps what went wrong until it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rankwise.errors import CheckpointError


class Writer:
    """A thread for each checkpoint. It never raises into the training."""

    def __init__(self) -> None:
        self.failure: CheckpointError | None = None
        """Of the last checkpoint that was begun; None while it is being written and where it was."""
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, write: Callable[[], None]) -> None:
        """Call `write` in a thread; the one before has ended. What it raises is kept as `failure`."""
        def work() -> None:
            try:
                write()
            except CheckpointError as error:
                self.failure = error
            except Exception as error:   # a fault of ours, which must not pass for a checkpoint that was written
                self.failure = CheckpointError("A checkpoint was to be written.", f"{type(error).__name__}: {error}.",
                                               "This should not happen: please report it.")

        self.failure = None
        self._thread = threading.Thread(target=work, name="rankwise-checkpoint", daemon=True)
        self._thread.start()

    def wait(self, limit_seconds: float) -> bool:
        """Wait for the end of what was begun; False where it takes longer than the limit."""
        if self._thread is not None:
            self._thread.join(limit_seconds)
        return not self.is_busy
