"""What a rank's interpreter runs: the job, with its output kept and its end told.

A rank that rankwise started lives no longer than its launcher. It leaves word of a failure before anything is torn
down, and ends without finalising the interpreter: a thread of a transport that is still at work there aborts the
process (seen in 1-10 % of plain runs with gloo).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from rankwise import environment, runfolder
from rankwise.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_USAGE, Preempted
from rankwise.launcher import preemption, streams
from rankwise.launcher.failure import Failure
from rankwise.launcher.job import Job
from rankwise.launcher.lastwords import recorded, watched_over
from rankwise.lifetime import end_with_parent
from rankwise.pulse import PULSE
from rankwise.settings import Settings
from rankwise.trial import timed
from rankwise.witness import watched
from rankwise.world import World

_SETTLE_SECONDS = 0.1


def main(launcher: int) -> NoReturn:
    """Run this process's job as the rank that the environment says, and end; `launcher` is its parent's process id."""
    end_with_parent(launcher)
    for number in (signal.SIGINT, signal.SIGUSR1):   # the latter until there is something to save
        signal.signal(number, _interrupted)
    faulthandler.enable()
    job_file, run_folder, world = environment.job(), environment.run_folder(), environment.world()
    assert job_file is not None
    assert run_folder is not None
    assert world is not None
    job, log = Job.read(job_file), streams.log_file(run_folder, world.rank)
    if world.is_main and job.has_terminal:
        with streams.copied_to(log):
            code = _run(job, job_file.parent, world, run_folder)
    else:
        streams.into_file(log)
        code = _run(job, job_file.parent, world, run_folder)
    leave(code)


def _interrupted(number: int, frame: Any) -> None:
    """Tidy up in peace: when the first rank has ended, the agent sends SIGTERM to the others."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def run_here(job: Job, settings: Settings, run_folder: Path) -> int:
    """The job as the only rank, in this process; returns the exit code, having said why where it is not 0."""
    from rankwise.launcher.layout import surroundings
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    variables = {**surroundings(settings, 1, run_folder), **alone}
    with (environment.changed(variables), streams.copied_to(streams.log_file(run_folder, 0)),
          watched_over(settings, World(), run_folder)):
        _take_threads(settings)
        code = _execute_here(job)
    if code == EXIT_USAGE:
        runfolder.discard_unused(run_folder)
    return code


def show_help(job: Job, settings: Settings) -> int:
    """The job, which was asked for its options and ends before a run begins, in this process; returns the exit code."""
    with environment.changed({environment.SETTINGS: settings.to_json()}):
        return _execute_here(job)


def _execute_here(job: Job) -> int:
    try:
        execute(job)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, Preempted):
            return EXIT_PREEMPTED
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return 0
        failure = Failure.of(error)
        print(failure.text, file=sys.stderr)
        return failure.exit_code
    return 0


def _take_threads(settings: Settings) -> None:
    """Torch is loaded in this process already, and has read the environment."""
    if settings.threads is not None:
        import torch
        torch.set_num_threads(settings.threads)


def _run(job: Job, folder: Path, world: World, run_folder: Path) -> int:
    """The job's exit code; what it raised is left for the launcher, which shows it and puts it into the log."""
    try:
        settings = environment.settings() or Settings()
        with watched_over(settings, world, run_folder), recorded(), _compared(settings), watched(), timed():
            execute(job, folder)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Preempted:
        return preemption.exit_code()
    except SystemExit as end:
        if end.code in (None, 0):
            return 0
        Failure.of(end).leave()
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except Exception as error:
        return Failure.of(error).exit_code
    return 0


def _compared(settings: Settings) -> contextlib.AbstractContextManager[None]:
    """With --debug the collectives of this rank are compared with those of the others, whatever the job is."""
    if not settings.debug:
        return contextlib.nullcontext()
    from rankwise.collectives import compared
    return compared(settings.timeout)


def execute(job: Job, folder: Path | None = None) -> None:
    """Run a script, a module or a shipped function as `python` would."""
    sys.argv[:] = job.argv
    left: Any = None
    try:
        if job.script is not None:
            sys.path[0] = str(Path(job.script).parent)
            left = runpy.run_path(job.script, run_name="__main__")
        elif job.module is not None:
            sys.path[0] = str(Path.cwd())
            left = runpy.run_module(job.module, run_name="__main__", alter_sys=True)
        else:
            from rankwise.launcher.shipping import run_shipped
            assert folder is not None
            run_shipped(job, folder)
        PULSE.is_over = True
    finally:
        _settle()
        del left


def _settle() -> None:
    """Give gloo a moment before the script's variables go, its DistributedDataParallel and so its process group.

    A thread of gloo may still be letting go of its last tensor, for which it needs Python's lock; and the end of the
    process group waits for that thread with the lock in hand, for ever. Seen on a machine with too much to do.
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_SETTLE_SECONDS)


def leave(code: int) -> NoReturn:
    """End as a child of multiprocessing does: wait for threads, run what was registered, flush, and go."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)   # what native code printed
    os._exit(code)
