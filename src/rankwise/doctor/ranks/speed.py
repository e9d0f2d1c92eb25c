"""How fast all ranks exchange, how fast one copies memory, and how long each takes for the same computation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from rankwise.doctor.ranks.report import Timing

SIZES_BYTES = tuple(4 ** power << 10 for power in range(9))   # 1 KB to 64 MB
_SECONDS_A_SIZE = 0.2
_LONGEST_SECONDS = 0.3     # after an all-reduce that takes so long, no larger one is timed: it would take four times
_IN_A_ROW = 10             # small ones, timed together: the ranks do not begin at the same moment
_SHORT_SECONDS = 0.01
_FEWEST, _MOST = 3, 20
_COPIED_BYTES, _COPIES = 64 << 20, 5
_WORK_TIMES = 25
_WORK_ROWS = {"cpu": 384, "cuda": 4096, "mps": 2048}   # of a square matrix; milliseconds each, less than a time slice


def all_reduces(device: torch.device, begin: Callable[[int], None]) -> Iterator[Timing]:
    """All-reduces of float32 of growing size; `begin` is told each size in bytes."""
    for size in SIZES_BYTES:
        begin(size)
        tensor = torch.zeros(size // 4, device=device)
        _seconds(tensor, 1)   # the first pass makes buffers
        likely = _agreed(_seconds(tensor, 1), device)
        in_a_row = _IN_A_ROW if likely < _SHORT_SECONDS else 1
        repeats = min(_MOST, max(_FEWEST, int(_SECONDS_A_SIZE / (in_a_row * likely))))
        yield Timing(size_bytes=size, seconds=statistics.median(_seconds(tensor, in_a_row) for _ in range(repeats)))
        if likely > _LONGEST_SECONDS:
            break


def memory_copy(device: torch.device) -> float:
    """Bytes a second from one place in memory to another: the best of some copies of 64 MB."""
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _COPIED_BYTES / min(_timed(device, lambda: target.copy_(source)) for _ in range(_COPIES))


def work(device: torch.device) -> list[float]:
    """Seconds of the same product of two matrices, many times; the first ones, in which much is made, left out."""
    rows = _WORK_ROWS[device.type]
    left, right = (torch.full((rows, rows), value, device=device) for value in (0.5, 0.25))
    return [_timed(device, lambda: torch.mm(left, right)) for _ in range(_WORK_TIMES + 3)][3:]


def _agreed(seconds: float, device: torch.device) -> float:
    """The largest over the ranks, which go on alike."""
    largest = torch.tensor([seconds], device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def _seconds(tensor: torch.Tensor, in_a_row: int) -> float:
    dist.barrier()
    return _timed(tensor.device, lambda: [dist.all_reduce(tensor) for _ in range(in_a_row)]) / in_a_row


def _timed(device: torch.device, do: Callable[[], object]) -> float:
    _wait_for(device)
    began = time.perf_counter()
    do()
    _wait_for(device)
    return time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
