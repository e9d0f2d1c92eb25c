"""How fast all ranks exchange, how fast one copies memory, and how long each takes for the same computation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch

from rankwise import stopwatch
from rankwise.doctor.ranks.report import Timing

_LONGEST_SECONDS = 0.3     # after an all-reduce that takes so long, no larger one is timed: it would take four times
_COPIED_BYTES, _COPIES = 64 << 20, 5
_WORK_TIMES = 25
_WORK_ROWS = {"cpu": 384, "cuda": 4096, "mps": 2048}   # of a square matrix; milliseconds each, less than a time slice


def all_reduces(device: torch.device, begin: Callable[[int], None]) -> Iterator[Timing]:
    """All-reduces of float32 of growing size; `begin` is told each size in bytes."""
    for size, seconds in stopwatch.all_reduces(device, longest_seconds=_LONGEST_SECONDS, begin=begin):
        yield Timing(size_bytes=size, seconds=statistics.median(seconds))


def memory_copy(device: torch.device) -> float:
    """Bytes a second from one place in memory to another: the best of some copies of 64 MB."""
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _COPIED_BYTES / min(stopwatch.timed(device, lambda: target.copy_(source)) for _ in range(_COPIES))


def work(device: torch.device) -> list[float]:
    """Seconds of the same product of two matrices, many times; the first ones, in which much is made, left out."""
    rows = _WORK_ROWS[device.type]
    left, right = (torch.full((rows, rows), value, device=device) for value in (0.5, 0.25))
    return [stopwatch.timed(device, lambda: torch.mm(left, right)) for _ in range(_WORK_TIMES + 3)][3:]
