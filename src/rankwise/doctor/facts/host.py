"""The machine under the training: cores, memory, shared memory, limits of a process, and the clock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from rankwise import processor
from rankwise.doctor.facts import cgroup

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (it is looked at, and written to by a file that is gone at once)
_RDMA = Path("/sys/class/infiniband")
_NOT_SYNCHRONISED = 5   # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES = 512      # more than the struct has; zeros ask and set nothing

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Space:
    """A file system: what it holds and has left, and why it cannot be written to (empty where it can)."""

    total_bytes: int
    free_bytes: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class Host:
    """What bounds a training besides its devices; None where this system does not tell."""

    cores: int                       # that this process may use
    cores_of_machine: int
    load: float | None               # processes that wanted a core in the last minute
    memory_bytes: int
    available_bytes: int
    limits: cgroup.Limits
    shared_memory: Space | None      # None where the system has none
    temporary: Space
    open_files: int | None           # soft limit; None: no limit
    most_open_files: int | None      # hard limit
    locked_bytes: int | None
    processes: int | None
    has_rdma: bool
    now_seconds: float               # since 1970
    newest_file_seconds: float       # when rankwise was put here: no clock may show less
    clock_is_synchronised: bool | None

    @property
    def room_bytes(self) -> int:
        """The memory that is left to a job: what is available, within the limit of the control group."""
        return min(self.available_bytes, self.limits.memory_bytes or self.available_bytes)


def read() -> Host:
    """Look at /proc, /sys and the limits of this process."""
    memory = psutil.virtual_memory()
    soft, hard = _limit(resource.RLIMIT_NOFILE)
    return Host(
        cores=processor.cores(), cores_of_machine=os.cpu_count() or 1, load=_asked(lambda: os.getloadavg()[0]),
        memory_bytes=memory.total, available_bytes=memory.available, limits=cgroup.read(),
        shared_memory=_space(_SHARED_MEMORY) if _SHARED_MEMORY.exists() else None,
        temporary=_space(Path(tempfile.gettempdir())), open_files=soft, most_open_files=hard,
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK)[0], processes=_limit(resource.RLIMIT_NPROC)[0],
        has_rdma=_RDMA.is_dir() and any(_RDMA.iterdir()), now_seconds=time.time(),
        newest_file_seconds=Path(__file__).stat().st_mtime, clock_is_synchronised=_asked(_clock_is_synchronised))


def _limit(kind: int) -> tuple[int | None, int | None]:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind))
    return soft, hard


def _space(folder: Path) -> Space:
    usage = shutil.disk_usage(folder)
    problem = ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"rankwise")
            file.flush()
    except OSError as error:
        problem = error.strerror or str(error)
    return Space(total_bytes=usage.total, free_bytes=usage.free, problem=problem)


def _clock_is_synchronised() -> bool | None:
    """Whether the kernel says that something keeps its clock; None where this cannot be asked."""
    if sys.platform != "linux":
        return None
    state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _NOT_SYNCHRONISED


def _asked(question: Callable[[], T]) -> T | None:
    with contextlib.suppress(OSError, AttributeError):
        return question()
    return None
