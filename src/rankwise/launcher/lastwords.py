"""A rank's last words: why it ends, and where all ranks stood then, left where the launcher looks.

The watchdog of this process has its beginning and its end here, and so has its bulletin, which says what the rank does.
The watchdog ends a rank that stands still with all others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rankwise import environment
from rankwise.errors import EXIT_FAILED, PeerError, RankwiseError
from rankwise.launcher.failure import Failure
from rankwise.pulse import PULSE
from rankwise.settings import Settings
from rankwise.watchdog import ending
from rankwise.watchdog.bulletin import Bulletin
from rankwise.watchdog.watch import Watch
from rankwise.world import World

_FLUSH_SECONDS = 1.0
_watch: Watch | None = None   # of this process


@contextlib.contextmanager
def watched_over(settings: Settings, world: World, folder: Path) -> Iterator[None]:
    """Within this block threads see whether the training moves, and tell of it, unless some do already.

    They may end this process.
    """
    global _watch
    if _watch is not None:
        yield
        return
    _watch = Watch(world, folder, stall_seconds=settings.stall_timeout, leave_word=_leave_word_of_stall, end=_end)
    bulletin = Bulletin(world, folder, PULSE)
    _watch.start()
    bulletin.start()
    end = None
    try:
        yield
    except BaseException as error:
        end = ending.of_error(world.rank, error)
        raise
    finally:
        end = end or ending.of_return(world.rank)
        _watch.stop(end)
        bulletin.stop(end)
        _watch = None


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Leave word of a failure in this block before anything is torn down: the others fail of it next."""
    try:
        yield
    except Exception as error:
        leave_word(error)
        raise


def leave_word(error: BaseException) -> Failure:
    """Tell the launcher why this rank fails; where it lost another rank, with where all of them are."""
    failure = Failure.of(error)
    if not failure.follows:
        failure.leave()
    report = _report(error)
    if failure.follows:
        failure = replace(failure, text=f"{failure.text}\n\n{report}") if report else failure
        failure.leave()
    return failure


def _report(error: BaseException) -> str:
    """Where all ranks stand at this failure; nothing for what was wrong from the start, and is told by itself."""
    if _watch is None or not isinstance(error, Exception):
        return ""
    if isinstance(error, RankwiseError) and not isinstance(error, PeerError):
        return ""
    report = _watch.report_of_loss(error)
    if ending.is_of_peer(error):
        _show(report)
    return report


def _leave_word_of_stall(report: str, is_first: bool) -> None:
    Failure(summary="The run stalled; this rank saw it first.", text=report, follows=not is_first,
            time_seconds=time.time()).leave()
    if is_first:
        _show(report)


def _end() -> None:
    """End this process at once: its main thread may be in native code and never come back.

    What it has started ends with it: a data worker that stands in its data set would live for ever.
    """
    import psutil
    printed = threading.Thread(target=sys.stdout.flush, daemon=True)   # the main thread may be at it, and stand there
    printed.start()
    printed.join(_FLUSH_SECONDS)
    for pid in [child.pid for child in psutil.Process().children(recursive=True)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(EXIT_FAILED)


def _show(report: str) -> None:
    """Print the report where no launcher of ours does so."""
    if environment.job() is None:
        print(report, file=sys.stderr, flush=True)
