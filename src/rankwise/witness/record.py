"""A rank's record on disk, an entry a line: what was written is there also when the process is killed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rankwise.witness.plan import record_file

_POLL_SECONDS = 0.02
END = "end"
ENOUGH = "enough"   # how a rank ended that made all the steps that were asked for


class Record:
    """Writes one rank's entries, and waits for those of others."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder, self._rank, self._world_size = folder, rank, world_size
        self._file = record_file(folder, rank).open("w", encoding="utf-8")
        self.has_ended = False

    def write(self, kind: str, **values: Any) -> None:
        """One entry; numbers that are not finite are written as Python spells them."""
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()

    def end(self, how: str, **values: Any) -> None:
        """The last entry; later calls change nothing."""
        if not self.has_ended:
            self.has_ended = True
            self.write(END, how=how, **values)

    def wait_for_others(self, limit_seconds: float) -> None:
        """Until every rank has written its last entry: one that leaves earlier may cut off a rank that still reads."""
        deadline = time.monotonic() + limit_seconds
        waiting = [record_file(self._folder, rank) for rank in range(self._world_size) if rank != self._rank]
        while waiting and time.monotonic() < deadline:
            waiting = [file for file in waiting if not has_ended(file)]
            time.sleep(_POLL_SECONDS)


def has_ended(file: Path) -> bool:
    """Whether the rank of this record has written its last entry."""
    try:
        with file.open("rb") as record:
            record.seek(0, 2)
            record.seek(max(0, record.tell() - 4096))
            last = record.read().rstrip(b"\n").rpartition(b"\n")[2]
    except OSError:
        return False
    return last.startswith(b'{"kind": "end"')
