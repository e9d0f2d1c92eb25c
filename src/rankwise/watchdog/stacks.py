"""The stacks of this process, read from another of its threads: where the training stands, and what every thread does.

The training is taken to run in the main thread. What a line of a stack means is told by the file that it is in.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rankwise import places
from rankwise.watchdog.recorder import Record
from rankwise.watchdog.state import Call, Doing

_START = ("rankwise/launcher/worker.py", "execute")
_COLLECTIVES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "rankwise/collectives/")
_ALONE = ("rankwise/group.py", "_wait_for_main")
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_DEBUGGERS = ("bdb", "pydevd", "_pydevd_bundle")   # pdb is one of bdb's
_DATA = ("torch/utils/data/", "rankwise/data/")


class Stance:
    """Where a thread stands: what it does, the user's places, and the innermost frame below them.

    `frames` are its frames with their lines, innermost first, `record` is of the collectives of this process, and
    `computes` says that the thread has used its processor lately.
    """

    def __init__(self, frames: Sequence[tuple[FrameType, int]], record: Record, *, computes: bool) -> None:
        own = next((number for number, (frame, _) in enumerate(frames) if places.user_file(frame.f_code.co_filename)),
                   len(frames))
        inner = [(_short(frame), frame.f_code.co_name) for frame, _ in frames[:own]]
        self.places = places.of_user(frames)
        self.inside = f"{inner[0][0]}:{frames[0][1]} in {inner[0][1]}" if inner else ""
        self.doing, self.wait = _meaning(inner, [_short(frame) for frame, _ in frames], record, computes)


def of_training() -> list[tuple[FrameType, int]]:
    """The frames of the main thread, innermost first, down to where a command of ours starts the training."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = [] if frame is None else list(traceback.walk_stack(frame))
    return list(itertools.takewhile(lambda each: (_short(each[0]), each[0].f_code.co_name) != _START, frames))


def is_debugged(frames: Sequence[tuple[FrameType, int]]) -> bool:
    """Whether these are of a thread in the hands of a debugger, where a person may be thinking."""
    return any(frame.f_globals.get("__name__", "").partition(".")[0] in _DEBUGGERS for frame, _ in frames)


def _meaning(inner: list[tuple[str, str]], files: list[str], record: Record,
             computes: bool) -> tuple[Doing, Call | None]:
    """What a stack says: `inner` are file and function of its frames below the user's, `files` those of all."""
    if _ALONE in inner:
        return Doing.WAITS, Call(what="run.alone(), for rank 0")
    if any(file.startswith(_DATA) for file in files):
        return Doing.READS, None
    if record.pending is not None:
        return Doing.WAITS, record.pending
    called = next((function for file, function in reversed(inner)
                   if file.startswith(_COLLECTIVES) and function != "wrapper"), None)
    if called is not None:
        return Doing.WAITS, Call(what=called)
    if _BACKWARD in inner and not computes and not record.calls:
        return Doing.WAITS, Call(what="a reduction in backward")
    return Doing.WORKS, None


def _short(frame: FrameType) -> str:
    """The file of a frame from its package on: `torch/autograd/graph.py`."""
    folders = Path(frame.f_code.co_filename).parts
    starts = [number for number, folder in enumerate(folders[:-1]) if folder in ("torch", "rankwise")]
    return "/".join(folders[starts[-1] if starts else -2:])


def of_all_threads() -> str:
    """The stack of every thread of this process, as Python prints them, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    parts = [time.strftime("%Y-%m-%d %H:%M:%S")]
    parts += [f"Thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames]
    return "\n".join(parts) + "\n"
