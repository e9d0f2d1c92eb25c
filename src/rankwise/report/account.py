"""The lines that a run says at its end, also for one that could not: from what its log has up to its last entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.history import History, Split

if TYPE_CHECKING:
    from rankwise.monitor.usage import Usage


def lines(history: History) -> list[str]:
    """Throughput, step, memory, slowest rank and advice; none where too little is on record."""
    if history.end is not None:
        return list(history.end.lines)
    start = history.starts[-1] if history.starts else None
    splits = [split for split in history.splits if start is not None and split.step > start.step]
    if start is None or not splits:
        return []
    from rankwise.monitor import summary  # loads torch, which a page of runs that have ended does without
    cores = start.environment.get("cores")
    return summary.lines(_usage(splits), device_name=str(start.environment.get("device")),
                         has_shared_cores=splits[-1].clock == "host" and cores is not None and start.world_size > cores)


def _usage(splits: Sequence[Split]) -> Usage:
    from rankwise.monitor import books
    from rankwise.monitor.usage import Usage
    usage = Usage()
    for split in splits:
        ranks = [books.RankBook(**rank.seconds, outside=0.0, communication_total=rank.communication_total,
                                wire_bytes=rank.wire_bytes, device_busy=rank.device_busy,
                                flops_per_second=rank.flops_per_second, memory_bytes=list(map(int, rank.memory_bytes)))
                 for rank in split.ranks]
        usage.add(books.Split(step=split.step, epoch=split.epoch, steps=split.steps, samples=split.samples,
                              clock=split.clock, ranks=ranks))
    return usage
