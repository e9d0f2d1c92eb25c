"""What a container or a job may use of its machine: the limits of its control groups, of version 1 and 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60   # version 1 writes "no limit" as a number that no machine has


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The tightest limit on the way from this process's group up to the root; None where there is none."""

    cores: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None


def read(root: Path = Path("/")) -> Limits:
    """The limits of this process, from the files under `root`."""
    groups = list(_groups(root))
    cores = [share for group in groups for share in _cores(group)]
    memory = [number for group in groups for name in ("memory.max", "memory.limit_in_bytes")
              for number in _number(group / name) if number < _UNLIMITED_BYTES]
    processes = [number for group in groups for number in _number(group / "pids.max")]
    return Limits(cores=min(cores, default=None), memory_bytes=min(memory, default=None),
                  processes=min(processes, default=None))


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's groups and of those above; in a container its own group may be mounted as root."""
    mounted, listed = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, controllers, path = line.split(":", 2)
        tops = [mounted / name for name in controllers.split(",") if name] or [mounted, mounted / "unified"]
        for top in tops:
            folder = top / path.lstrip("/")
            while folder != top.parent:
                if folder.is_dir():
                    yield folder
                folder = folder.parent


def _cores(group: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):   # `max` stands for no limit
        quota, period = (group / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    for quota_us in _number(group / "cpu.cfs_quota_us"):
        for period_us in _number(group / "cpu.cfs_period_us"):
            yield quota_us / period_us


def _number(file: Path) -> Iterator[int]:
    """The positive number in a file, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        number = int(file.read_text())
        if number > 0:
            yield number
