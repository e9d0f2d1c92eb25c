"""A process that lives no longer than the one that started it, whatever ends that one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from rankwise.errors import EXIT_FAILED

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 1.0


def end_with_parent(parent: int) -> None:
    """See that this process is killed when process `parent` ends, or has ended before this process could look.

    On Linux the system does it, at once, and also when the thread ends that started this process: it has to be one that
    stays. Elsewhere a thread looks once a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_FAILED)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="rankwise-parent-watch", daemon=True).start()
