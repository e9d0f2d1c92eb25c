"""Who of the ranks has come, who moves and who has reported: decides when it is over. Time is what the caller says."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.doctor.ranks.report import Report

_LAST_WORD_SECONDS = 5.0   # for the other ranks, when one has met a problem
_LIMITS = 2                # one for a step, and one for those that a step waits for
_ASKED_SECONDS = 3.0       # when the launcher asks to end


class Attendance:
    """What is known of `size` ranks. Each step of a rank has a limit of its own, which it keeps itself."""

    def __init__(self, size: int, *, limit_seconds: float, now: float) -> None:
        self._size, self._limit_seconds, self._moved_at = size, limit_seconds, now
        self._steps: dict[int, str] = {}
        self._reports: dict[int, Report] = {}

    def missing(self) -> list[int]:
        """Ranks that have not reported."""
        return [rank for rank in range(self._size) if rank not in self._reports]

    def note(self, rank: int, step: str | None, report: Report | None, now: float) -> None:
        """What was read of a rank just now."""
        if step is not None and self._steps.get(rank) != step:
            self._steps[rank], self._moved_at = step, now
        if report is not None and rank not in self._reports:
            self._reports[rank], self._moved_at = report, now

    def is_over(self, now: float, *, is_asked_to_end: bool) -> bool:
        """Whether nothing more is to come: all have reported, or those that have not are stuck or gone."""
        still = now - self._moved_at
        if not self.missing() or (is_asked_to_end and still > _ASKED_SECONDS):
            return True
        if any(report.problem for report in self._reports.values()):
            return still > _LAST_WORD_SECONDS
        return still > _LIMITS * self._limit_seconds + _LAST_WORD_SECONDS

    def reports(self, so_far: Mapping[int, Report]) -> list[Report]:
        """A report of each rank, in order; of one that sent none, what it had found `so_far`, or was seen of it."""
        return [self._reports.get(rank) or so_far.get(rank) or Report(
            rank=rank, has_joined=rank in self._steps, step=self._steps.get(rank, ""))
            for rank in range(self._size)]
