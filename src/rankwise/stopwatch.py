"""How long a device takes for something, and all ranks for an all-reduce, by its size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

SIZES_BYTES = tuple(4 ** power << 10 for power in range(9))   # 1 KB to 64 MB
_SECONDS_A_SIZE = 0.25
_IN_A_ROW = 10           # small ones, timed together: the ranks do not begin at the same moment
_SHORT_SECONDS = 0.01
_FEWEST, _MOST = 3, 20


def all_reduces(device: torch.device, *, longest_seconds: float,
                begin: Callable[[int], None] = lambda size: None) -> Iterator[tuple[int, list[float]]]:
    """All-reduces of float32 over all ranks: each size in bytes, with the seconds of one, several times measured.

    After one that takes longer than `longest_seconds` no larger one is timed, on any rank. `begin` is told each size.
    """
    for size in SIZES_BYTES:
        begin(size)
        tensor = torch.zeros(size // 4, device=device)
        _seconds(tensor, 1)   # the first pass makes buffers
        likely = _agreed(_seconds(tensor, 1), device)
        in_a_row = _IN_A_ROW if likely < _SHORT_SECONDS else 1
        repeats = min(_MOST, max(_FEWEST, int(_SECONDS_A_SIZE / (in_a_row * likely))))
        yield size, [_seconds(tensor, in_a_row) for _ in range(repeats)]
        if likely > longest_seconds:
            break


def timed(device: torch.device, do: Callable[[], object]) -> float:
    """Seconds until what `do` gives the device to do is done."""
    _wait_for(device)
    began = time.perf_counter()
    do()
    _wait_for(device)
    return time.perf_counter() - began


def _agreed(seconds: float, device: torch.device) -> float:
    """The largest over the ranks, which go on alike."""
    largest = torch.tensor([seconds], device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def _seconds(tensor: torch.Tensor, in_a_row: int) -> float:
    dist.barrier()
    return timed(tensor.device, lambda: [dist.all_reduce(tensor) for _ in range(in_a_row)]) / in_a_row


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
