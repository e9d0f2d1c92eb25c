"""What a rank has used of its devices: the most memory so far, and how busy they are."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024   # of ru_maxrss


def peak_memory_bytes(device: torch.device, devices: int = 1) -> list[int]:
    """By device. On CUDA what torch has allocated at its peak; on a CPU the peak resident memory of the process, once.

    A process's resident memory includes the interpreter, torch and shared libraries.
    """
    if device.type == "cuda":
        first = device.index or 0
        return [torch.cuda.max_memory_allocated(index) for index in range(first, first + devices)]
    if device.type == "mps":
        return [torch.mps.driver_allocated_memory()]
    import resource  # not there on Windows
    return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_BYTES]


def busy_share(device: torch.device) -> float | None:
    """The share of the last moments in which a GPU ran some kernel, however small; None where it cannot be asked."""
    if device.type != "cuda":
        return None
    with contextlib.suppress(Exception):   # the driver's library may be missing, or not allow it
        return torch.cuda.utilization(device) / 100
    return None
