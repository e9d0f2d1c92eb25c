"""The machine that a comparison was made on: what bounds its numbers, and what versions they belong to."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from rankwise import environment, processor
from rankwise.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Kind and name of the devices, the processor cores that are shared by all ranks, and versions."""

    kind: str                      # cpu, cuda or mps
    name: str                      # of the processor or the accelerator
    cores: int
    asked_threads: int | None      # for each process: --threads, or OMP_NUM_THREADS
    load: float | None             # processes that wanted a core in the minute before; None where that is not known
    torch: str
    python: str
    platform: str

    def threads(self, processes: int) -> int | None:
        """CPU threads that each of so many processes computes with; None where accelerators compute."""
        if self.kind != "cpu":
            return None
        return self.asked_threads or max(1, self.cores // processes)

    @property
    def was_busy(self) -> bool:
        """Whether other work had a good part of the cores before the comparison began."""
        return self.load is not None and self.load > self.cores / 4

    def shares_cores(self, devices: int) -> bool:
        """Whether so many devices, each with as many threads as the one of the baseline, exceed the cores."""
        alone = self.threads(1)
        return alone is not None and devices * alone > self.cores


def this_machine(settings: Settings) -> Machine:
    """The machine of this process, for ranks that are started with these settings; to be asked before they are."""
    import torch

    from rankwise.device import kind_of_device
    kind = kind_of_device(settings.accelerator)
    return Machine(kind=kind, name=torch.cuda.get_device_name() if kind == "cuda" else processor.model(),
                   cores=processor.cores(), asked_threads=settings.threads or environment.threads(),
                   load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
                   torch=str(torch.__version__), python=platform.python_version(), platform=platform.platform())
