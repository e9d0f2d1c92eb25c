"""What must be the same wherever the same bits are to come out: software, processor, threads, and no chance in kernels.

The number of threads and the kind of processor decide in which order a kernel adds up a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rankwise import processor
from rankwise.errors import UsageError
from rankwise.group import Group


def facts(device: torch.device) -> dict[str, str]:
    """What the bits of a rank's results depend on, beside the training itself, by name."""
    found = {"PyTorch": torch.__version__, "threads": str(torch.get_num_threads()),
             "processor": processor.model(), "instructions": torch.backends.cpu.get_cpu_capability(),
             "float32 products": torch.get_float32_matmul_precision(),
             "oneDNN": str(torch.backends.mkldnn.enabled)}
    if device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        found |= {"GPU": torch.cuda.get_device_name(device), "CUDA": str(torch.version.cuda),
                  "cuDNN": str(cudnn.version())}
    return found


def require_same(group: Group) -> None:
    """Raise UsageError, on every rank, where the ranks could not compute the same bits."""
    everyone = group.gather_objects(facts(group.device))
    for rank, theirs in enumerate(everyone):
        told = differences(everyone[0], theirs)
        if told:
            raise UsageError(f"Exact mode was asked for, and rank {rank} differs from rank 0: {'; '.join(told)}.",
                             "The bits of a result depend on these, so all ranks must have the same.",
                             "Use machines of one kind with the same installation and --threads, or leave --exact out.")


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Of two ranks or runs, each fact that differs."""
    return [f"{name} {other.get(name)}, not {value}" for name, value in first.items() if other.get(name) != value]


class Determinism:
    """Lets torch refuse operators whose result depends on chance, until `end`."""

    def __init__(self) -> None:
        settings: Any = torch.utils.deterministic
        self._before = (torch.are_deterministic_algorithms_enabled(),
                        torch.is_deterministic_algorithms_warn_only_enabled(),
                        settings.fill_uninitialized_memory, torch.backends.cudnn.benchmark)
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False   # it costs a pass over each new tensor
        torch.backends.cudnn.benchmark = False

    def end(self) -> None:
        """Leave torch as it was."""
        enabled, warn_only, fill, benchmark = self._before
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        settings: Any = torch.utils.deterministic
        settings.fill_uninitialized_memory = fill
        torch.backends.cudnn.benchmark = benchmark
