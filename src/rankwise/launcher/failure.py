"""How a rank says why it failed, and how the launcher finds the failure that came first.

A rank leaves a file in the format of torch's elastic agent, with a word of ours beside it, so that torchrun shows the
same reason as `rankwise run`.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import threading
import time
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise import environment
from rankwise.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CheckpointError,
    MisuseError,
    RankwiseError,
    UsageError,
)
from rankwise.watchdog.ending import is_of_peer

_OURS = "rankwise"
_FINAL = (UsageError, MisuseError, CheckpointError)   # the others may have come from outside: a killed data worker, say
_TAIL_LINES = 12
_SIGNS = {"SIGKILL": " The system may have run out of memory.",
          "SIGABRT": " Native code gave up; gloo does so where the ranks call collectives of different sizes. With "
                     "--debug both calls are named."}
_MACHINERY = (str(Path(__file__).parent), "<frozen runpy>", "runpy.py")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a rank ended: `text` is for the person at the keyboard, a traceback or the message of a RankwiseError.

    A process that left no word has no `text`; `tail`, the end of its log, stands in. `follows` says that another rank's
    failure is the likely reason: a lost or late peer. `is_final` says that another attempt would end the same way.
    """

    summary: str
    text: str
    tail: str = ""
    exit_code: int = EXIT_FAILED
    follows: bool = False
    is_final: bool = False
    time_seconds: float = 0.0

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What to tell about an exception of a training."""
        if isinstance(error, RankwiseError):
            follows = is_of_peer(error)
            return cls(summary=type(error).__name__, text=str(error), exit_code=error.exit_code, follows=follows,
                       is_final=isinstance(error, _FINAL), time_seconds=time.time())
        if isinstance(error, SystemExit):
            shown = error.code if isinstance(error.code, str) else f"It ended with exit code {error.code}."
            return cls(summary=shown, text=shown, exit_code=EXIT_USAGE if error.code == EXIT_USAGE else EXIT_FAILED,
                       is_final=True, time_seconds=time.time())
        return cls(summary="".join(traceback.format_exception_only(error)).strip(), text=_traceback(error),
                   follows=is_of_peer(error), time_seconds=time.time())

    @classmethod
    def of_process(cls, exit_code: int, left: dict[str, Any], seen_seconds: float, log: Path) -> Failure:
        """What is known of a process that ended with `exit_code`: the word it left, or the end of its log."""
        if _OURS in left:
            message = left["message"]
            return cls(summary=message["message"], text=message["extraInfo"]["py_callstack"], **left[_OURS])
        stopped = exit_code == -signal.SIGTERM   # what the agent sends to the ranks that are left after a failure
        return cls(summary=_how_it_ended(exit_code), text="", tail=_tail(log), follows=stopped,
                   time_seconds=math.inf if stopped else seen_seconds,
                   exit_code=EXIT_USAGE if exit_code == EXIT_USAGE else EXIT_FAILED,
                   is_final=exit_code in (EXIT_USAGE, EXIT_INTERRUPTED))

    @property
    def account(self) -> str:
        """The text, where it says more than the summary."""
        return self.text if self.text != self.summary else ""

    def leave(self) -> None:
        """Put this failure where the launcher looks, unless this rank has said one already."""
        file = environment.error_file()
        if file is None or file.exists():
            return
        data = {"message": {"message": self.summary, "extraInfo": {
                    "py_callstack": self.text, "timestamp": str(int(self.time_seconds))}},
                _OURS: {"exit_code": self.exit_code, "follows": self.follows, "is_final": self.is_final,
                        "time_seconds": self.time_seconds}}
        whole = file.with_suffix(f".{threading.get_ident()}")   # another thread may do the same, or end us
        with contextlib.suppress(OSError):
            whole.write_text(json.dumps(data), encoding="utf-8")
            whole.replace(file)


def first(failures: dict[int, Failure]) -> int:
    """The rank whose failure is the cause: the earliest of those that no other explains."""
    return min(failures, key=lambda rank: (failures[rank].follows, failures[rank].time_seconds))


def _traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of the launch itself where there are others."""
    trace = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, _of_the_user(trace) or trace)).rstrip()


def hide_our_frames() -> None:
    """From here on Python prints an exception that nobody catches without the frames of the launch itself."""
    printed = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        trace = _of_the_user(trace) or trace
        printed(kind, error.with_traceback(trace), trace)

    sys.excepthook = show


def _of_the_user(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The frames that are not the launch's own."""
    if trace is None:
        return None
    rest = _of_the_user(trace.tb_next)
    if any(part in trace.tb_frame.f_code.co_filename for part in _MACHINERY):
        return rest
    return types.TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _how_it_ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"It ended with exit code {exit_code}."
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = str(-exit_code)
    return f"It was killed by signal {name}.{_SIGNS.get(name, '')}"


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n  ".join(["Last lines of its log file:", *lines[-_TAIL_LINES:]]) if lines else ""
