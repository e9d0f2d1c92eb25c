"""Where the data workers of this process stand: each is asked by a signal, and answers with its stacks.

A worker of torch's DataLoader that is forked inherits the answer, which `faulthandler` writes even where the worker is
in native code. Workers that are spawned do not, and nothing is known of them; so it is where the system is not Linux.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rankwise import places

_NAME = "pt_data_worker"   # as torch calls the main thread of its workers
_LOOP = ("torch/utils/data/_utils/worker.py", "_worker_loop")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_ASK_SECONDS = 2.0      # for all workers; the other ranks wait for this one's state
_POLL_SECONDS = 0.01
_QUIET_POLLS = 10       # without a further line an answer is complete


class DataWorkers:
    """Hears the workers that are forked between `listen` and `close`."""

    def __init__(self) -> None:
        self._signal = 0
        self._answers = -1   # a file in memory, which the workers inherit

    def listen(self) -> None:
        """Have this process, and so its workers, answer; a handler that the signal has already is left alone."""
        if sys.platform != "linux":
            return
        number = signal.SIGRTMAX - 1   # of the signals without a name, which schedulers and libraries do not send
        if signal.getsignal(number) is signal.SIG_DFL:
            self._answers = os.memfd_create("rankwise-stacks")
            faulthandler.register(number, file=self._answers, all_threads=True)
            self._signal = number

    def close(self) -> None:
        if self._signal:
            faulthandler.unregister(self._signal)
            os.close(self._answers)
            self._signal = 0

    def stacks(self) -> list[str]:
        """The stacks of each worker that answers, under a line with its process id."""
        if not self._signal or signal.getsignal(self._signal) is not signal.SIG_DFL:   # the user's own, since
            return []
        deadline = time.monotonic() + _ASK_SECONDS
        return [f"Data worker {pid}\n{answer}" for pid in self._pids() if (answer := self._answer(pid, deadline))]

    def _pids(self) -> Iterator[int]:
        """The child processes that are workers of torch and catch the signal: any other would die of it."""
        import psutil
        for child in psutil.Process().children():
            with contextlib.suppress(OSError, KeyError):
                said = dict(line.split(":\t", 1) for line in
                            Path(f"/proc/{child.pid}/status").read_text().splitlines() if ":\t" in line)
                if said["Name"] == _NAME and int(said["SigCgt"], 16) >> (self._signal - 1) & 1:
                    yield child.pid

    def _answer(self, pid: int, deadline: float) -> str:
        """One after the other: they write into one file."""
        begin = size = os.fstat(self._answers).st_size
        quiet = 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, self._signal)
        while quiet < _QUIET_POLLS and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            size, before = os.fstat(self._answers).st_size, size
            quiet = quiet + 1 if size == before > begin else 0
        return os.pread(self._answers, size - begin, begin).decode("ascii", "replace")


def place_in(stacks: str) -> str:
    """Where the user's code stands in a worker, with the lines it was called from; nothing where it has no work."""
    inner: list[str] = []
    for frame in map(_FRAME.fullmatch, stacks.splitlines()):
        if frame is None:   # another thread begins
            inner = []
        elif frame["file"].endswith(_LOOP[0]) and frame["function"] == _LOOP[1]:
            return ", called from ".join(inner[:3])
        elif file := places.user_file(_unescaped(frame["file"])):
            inner.append(f"{file}:{frame['line']} in {frame['function']}")
    return ""


def _unescaped(name: str) -> str:
    """A file's name; faulthandler writes what is not ASCII as numbers."""
    return re.sub(r"\\(?:x..|u.{4}|U.{8})", lambda escape: chr(int(escape[0][2:], 16)), name)
