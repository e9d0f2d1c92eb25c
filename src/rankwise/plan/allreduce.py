"""What two ranks run to time their link: all-reduces of growing size. As a job: `-m rankwise.plan.allreduce FILE`."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rankwise import environment
from rankwise.device import device_of, kind_of_device
from rankwise.group import backend_of
from rankwise.settings import Settings
from rankwise.world import World

SIZES_BYTES = tuple(4 ** power << 10 for power in range(9))   # 1 KB to 64 MB
_SECONDS_A_SIZE = 0.25
_LONGEST_SECONDS = 1.0   # after an all-reduce that takes so long, no larger one is timed
_IN_A_ROW = 10           # small ones, timed together: the ranks do not begin at the same moment
_SHORT_SECONDS = 0.01
_FEWEST, _MOST = 3, 20


def main(file: Path) -> None:
    """Time all-reduces over all ranks of this job; rank 0 writes {bytes: [seconds, ...]} to `file`."""
    world, settings = environment.world() or World(), environment.settings() or Settings()
    device = device_of(world, kind_of_device(settings.accelerator))
    dist.init_process_group(backend_of(device), timeout=timedelta(seconds=settings.timeout))
    try:
        found = timed(device)
        if world.is_main:
            file.write_text(json.dumps(found), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def timed(device: torch.device) -> dict[int, list[float]]:
    """Seconds of an all-reduce between all ranks, by its bytes, several times each."""
    found: dict[int, list[float]] = {}
    for size in SIZES_BYTES:
        tensor = torch.zeros(size // 4, device=device)
        _seconds(tensor, 1)   # the first pass makes buffers
        likely = _agreed(_seconds(tensor, 1), device)
        in_a_row = _IN_A_ROW if likely < _SHORT_SECONDS else 1
        repeats = min(_MOST, max(_FEWEST, int(_SECONDS_A_SIZE / (in_a_row * likely))))
        found[size] = [_seconds(tensor, in_a_row) for _ in range(repeats)]
        if likely > _LONGEST_SECONDS:
            break
    return found


def _agreed(seconds: float, device: torch.device) -> float:
    """The largest over the ranks, which go on alike."""
    largest = torch.tensor([seconds], device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def _seconds(tensor: torch.Tensor, in_a_row: int) -> float:
    dist.barrier()
    _wait_for(tensor.device)
    began = time.perf_counter()
    for _ in range(in_a_row):
        dist.all_reduce(tensor)
    _wait_for(tensor.device)
    return (time.perf_counter() - began) / in_a_row


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
