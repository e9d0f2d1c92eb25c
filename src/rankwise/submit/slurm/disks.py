"""Whether other machines see a file: by the kind of file system that it lies on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankwise.errors import UsageError

# Linux's file systems on a disk, or in the memory, of one machine. A kind that is not among them may well be shared.
_OF_ONE_MACHINE = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs", "tmpfs", "ramfs",
                   "overlay", "squashfs", "iso9660", "vfat", "exfat", "rootfs", "devtmpfs"}
_MOUNTS = Path("/proc/self/mountinfo")


def require_shared(files: Mapping[str, Path], machines: Sequence[str]) -> None:
    """Raise UsageError for a file, by what it is, that lies on a disk of this machine alone; `machines` need it."""
    mounts = _MOUNTS.read_text("utf-8", "replace") if _MOUNTS.exists() else ""
    for what, path in files.items():
        kind, mount = file_system(mounts, path.resolve())
        if kind in _OF_ONE_MACHINE:
            raise UsageError(
                f"The {what} is {path}.",
                f"It lies on a disk of this machine ({mount}, {kind}), and the job runs on {_some(machines)}.",
                "Put it on a disk that the cluster shares; or give --shared, if the machines have the same there.")


def file_system(mounts: str, path: Path) -> tuple[str, str]:
    """The kind of file system of an absolute path and where it is mounted, by the text of Linux's mountinfo.

    Two empty texts where that has none. The last mount at a place is the one that is seen.
    """
    best = ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or not after:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
        if path.is_relative_to(mount) and len(mount) >= len(best[1]):
            best = (after.split()[0], mount)
    return best


def _some(machines: Sequence[str]) -> str:
    return ", ".join(machines[:3]) + (f" and {len(machines) - 3} more" if len(machines) > 3 else "")
