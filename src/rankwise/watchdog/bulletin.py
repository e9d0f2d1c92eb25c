"""The bulletin of a rank: what it does, put into its status file each second by a thread beside the training.

It is no part of the watching thread: a file system that hangs holds up the bulletin, and not the watchdog.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path

from rankwise import environment, runfolder
from rankwise.pulse import Pulse
from rankwise.rankstatus import RankStatus
from rankwise.watchdog import recorder, stacks
from rankwise.watchdog.loading import is_loaded
from rankwise.watchdog.pace import Pace
from rankwise.watchdog.state import Doing, RankState
from rankwise.world import World

_SECONDS = 1.0
_WINDOW_SECONDS = 30.0    # over which steps a second are counted
_STANDS_SECONDS = 3.0     # without a sign of progress, after which it is said where the rank stands
_LOOK_AGAIN_SECONDS = 10.0   # to say so anew: it takes some milliseconds of Python's lock
_END_SECONDS = 1.0


class Bulletin:
    """Tells of the training of this process from `start` to `stop`; the training goes on whatever a disk does to it."""

    def __init__(self, world: World, folder: Path, pulse: Pulse) -> None:
        self._world, self._folder, self._pulse = world, folder / runfolder.STATUS, pulse
        self._pace = Pace(pulse, is_alone=world.size == 1)
        self._counts: deque[tuple[float, int]] = deque()   # when the training had made so many steps
        self._stance, self._looks_again_at = "", 0.0
        self._attempt, self._launcher_pid = environment.attempt(), _launcher_pid()
        self._ended: RankState | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwise-bulletin", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, state: RankState) -> None:
        """This rank ends, as `state` says: the last thing that is told."""
        self._ended = state
        self._wake.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while True:
            is_last = self._ended is not None
            if is_loaded("torch"):
                self._pace.look()
            self._count()
            with contextlib.suppress(OSError):
                self._status().write(self._folder)
            if is_last:
                return
            self._wake.wait(_SECONDS)

    def _status(self) -> RankStatus:
        ended, pulse = self._ended, self._pulse
        return RankStatus(
            rank=self._world.rank, world_size=self._world.size, attempt=self._attempt, host=socket.gethostname(),
            pid=os.getpid(), launcher_pid=self._launcher_pid, time=time.time(), state=self._state(),
            phase="" if ended else pulse.phase(), step=pulse.steps, epoch=pulse.epoch,
            steps_per_second=self._steps_per_second(), idle_seconds=round(self._pace.idle_seconds, 3),
            memory_bytes=memory_bytes(), has_ended=ended is not None)

    def _state(self) -> str:
        pulse = self._pulse
        if self._ended is not None:
            return self._ended.how or "ended"
        if pulse.is_over:
            return "finishing"
        if pulse.alone:
            return f"alone: {pulse.alone}"
        if pulse.is_saving:
            return "saving"
        if self._pace.idle_seconds > _STANDS_SECONDS:
            return self._standing()
        return "training" if pulse.beats else "starting"

    def _standing(self) -> str:
        if not self._stance or time.monotonic() > self._looks_again_at:
            self._stance = _in_words(stacks.Stance(stacks.of_training(), recorder.read(), computes=self._pace.computes))
            self._looks_again_at = time.monotonic() + _LOOK_AGAIN_SECONDS
        return self._stance

    def _count(self) -> None:
        now = time.monotonic()
        if self._pace.idle_seconds <= _STANDS_SECONDS:
            self._stance = ""
        steps = max(0, self._pulse.steps - self._pulse.steps_before)
        has_begun = len(self._counts) > 1 or (self._counts and steps > self._counts[0][1])
        if not has_begun or steps < self._counts[-1][1]:   # the latter where another training begins in this process
            self._counts.clear()
        self._counts.append((now, steps))
        while now - self._counts[0][0] > _WINDOW_SECONDS:
            self._counts.popleft()

    def _steps_per_second(self) -> float | None:
        """None until a step was made in front of this thread's eyes."""
        (began, before), (now, steps) = self._counts[0], self._counts[-1]
        return (steps - before) / (now - began) if now > began else None


def _in_words(stance: stacks.Stance) -> str:
    place = f" at {stance.places[0]}" if stance.places else ""
    if stance.doing is Doing.WAITS and stance.wait is not None:
        return f"waits in {stance.wait.what.partition(' (')[0]}{place}"
    return f"reads data{place}" if stance.doing is Doing.READS else f"stands{place}"


def memory_bytes() -> tuple[int, ...]:
    """What each CUDA device holds for this process, at most so far; without one, this process's resident memory."""
    torch = sys.modules["torch"] if is_loaded("torch") else None
    if torch is not None and torch.cuda.is_initialized():
        return tuple(peak for device in range(torch.cuda.device_count())
                     if (peak := torch.cuda.max_memory_allocated(device)))
    import psutil
    return (psutil.Process().memory_info().rss,)


def _launcher_pid() -> int:
    """The process that would start this rank again; itself where there is none."""
    has_launcher = environment.job() is not None or environment.is_elastic()
    return os.getppid() if has_launcher else os.getpid()
