"""What can be seen of a run at one moment: its ranks' files, and whether the processes that wrote them are there."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise import history, rankstatus, runfolder
from rankwise.history import History
from rankwise.rankstatus import RankStatus

_SILENT_SECONDS = 5.0     # a rank speaks each second
_LOST_SECONDS = 60.0      # without a word from another machine's process
_START_SECONDS = 120.0    # from a start to the first word
_RESTART_SECONDS = 30.0   # from the end of all ranks to the first word of the next ones


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank: what it said last, how long ago, and whether its process may say more."""

    status: RankStatus
    age_seconds: float
    is_there: bool

    @property
    def state(self) -> str:
        """What it does, or that it is gone or silent."""
        said = self.status
        if said.has_ended:
            return said.state
        if not self.is_there:
            return f"gone, without a word; last seen: {said.state}"
        if self.age_seconds > _SILENT_SECONDS:
            return f"silent; last seen: {said.state}"
        return f"{said.state}: {said.phase}" if said.phase and said.state == "training" else said.state


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A run at one moment. `missing` are ranks of which nothing is known; `is_over` says that no more will come."""

    name: str
    target: str
    ranks: tuple[Rank, ...]
    missing: tuple[int, ...]
    log: History
    has_stalled: bool
    is_over: bool

    @property
    def has_failed(self) -> bool:
        """Whether a run that is over ended in another way than by coming to its end."""
        if self.log.end is not None:
            return self.log.end.how == "failed"
        return not self.ranks or any(rank.status.state != "ended" for rank in self.ranks)


def look(folder: Path) -> Sight:
    """What there is to see now of the run in this folder."""
    now = time.time()
    statuses = _of_one_start(rankstatus.read(folder / runfolder.STATUS))
    ranks = tuple(Rank(status=each, age_seconds=max(0.0, now - each.time), is_there=_is_there(each, each.pid, now))
                  for each in statuses)
    size = statuses[0].world_size if statuses else 0
    log = history.latest(folder)
    started_at = _changed_at(folder / runfolder.SETTINGS)
    return Sight(name=folder.name, target=runfolder.target_of(folder) or "", ranks=ranks, log=log,
                 missing=tuple(sorted(set(range(size)) - {rank.status.rank for rank in ranks})),
                 has_stalled=_changed_at(folder / runfolder.STALLS / "report.txt") > started_at > 0,
                 is_over=_is_over(ranks, log, started_at, now))


def _of_one_start(statuses: Sequence[RankStatus]) -> list[RankStatus]:
    """Those of the latest start: files of an earlier one may be left, of more ranks than there are now."""
    newest = max(statuses, key=lambda status: status.time, default=None)
    if newest is None:
        return []
    return [each for each in statuses if each.world_size == newest.world_size and each.rank < newest.world_size]


def _is_over(ranks: Sequence[Rank], log: History, started_at: float, now: float) -> bool:
    """Whether all ranks have ended, and nobody will start them again."""
    newest = max((rank.status.time for rank in ranks), default=0.0)
    if newest < started_at:   # the run was started, or resumed, and no rank has said anything yet
        return now - started_at > _START_SECONDS
    if any(rank.is_there and not rank.status.has_ended for rank in ranks):
        return False
    has_finished = log.end is not None and log.end.how == "finished"
    may_start_again = any(_is_there(rank.status, rank.status.launcher_pid, now) for rank in ranks)
    return has_finished or not may_start_again or now - newest > _RESTART_SECONDS


def _is_there(status: RankStatus, pid: int, now: float) -> bool:
    """Whether this process lives; on another machine, whether the rank has spoken lately."""
    if status.host != socket.gethostname():
        return now - status.time < _LOST_SECONDS
    import psutil
    try:
        process = psutil.Process(pid)
        return bool(process.create_time() <= status.time and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _changed_at(path: Path) -> float:
    """In seconds since 1970; 0 where there is no such file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
