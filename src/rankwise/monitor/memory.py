"""The most memory that a rank has used so far: of each of its devices, or of its process where the device is a CPU."""

from __future__ import annotations

import sys

import torch

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
