"""A folder of one launch that only its user can enter; what killed launches left is removed at the next one."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "rankwise-"
_LOCK = "launcher.lock"      # held as long as the launcher lives; the system lets go of it with the process
_SETTLED_SECONDS = 60.0      # a folder that is younger may not have its lock yet


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter (what is unpickled comes from here), gone at the end."""
    _remove_orphans()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = FileLock(folder / _LOCK)
    lock.acquire(timeout=0)
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):   # another user's, or in use
            is_settled = time.time() - folder.stat().st_mtime > _SETTLED_SECONDS
            if is_settled and (folder / _LOCK).is_file():
                with FileLock(folder / _LOCK, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)
