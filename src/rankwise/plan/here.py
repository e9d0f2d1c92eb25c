"""What this machine says of itself to a plan: its devices and their memory, and the link between two of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import psutil

from rankwise import processor
from rankwise.device import count, kind_of_device
from rankwise.errors import RankwiseError, UsageError
from rankwise.group import backend_of
from rankwise.launcher import layout
from rankwise.launcher.job import Job
from rankwise.launcher.quiet import run_quietly
from rankwise.plan import linkfit
from rankwise.plan.links import Link
from rankwise.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices of this machine, and what one of them holds; None where that is not known."""

    name: str
    backend: str
    memory_bytes: int | None


def machine(accelerator: str, devices_per_node: int) -> Machine:
    """This machine. On a CPU a device is a process, and `devices_per_node` of them share the host's memory."""
    import torch
    kind = kind_of_device(accelerator)
    name, memory = kind, None
    if kind == "cpu":
        name = f"{processor.model()}, {processor.cores()} cores"
        memory = psutil.virtual_memory().total // devices_per_node
    elif kind == "cuda":
        device = torch.cuda.get_device_properties(0)
        name, memory = device.name, device.total_memory
    return Machine(name=name, backend=backend_of(torch.device(kind)), memory_bytes=memory)


def measured_link(settings: Settings, folder: Path) -> Link:
    """The link between two devices of this machine, timed by a job of two ranks that do nothing else.

    Raises UsageError where there are no two devices, and RankwiseError where the job fails.
    """
    present = count(kind_of_device(settings.accelerator))
    if present is not None and present < 2:
        raise UsageError("No link is given.", f"It is measured between two devices, and here is {present}.",
                         "Give --link 100gbit or --link nvlink, for example.")
    file, run_folder = folder / "link.json", folder / "link"
    run_folder.mkdir(parents=True)
    job = Job(module="rankwise.plan.allreduce", argv=["allreduce", str(file)], has_terminal=False, can_save=False)
    ranks = layout.with_devices(settings.having(mode="ddp", devices=2, threads=1))
    outcome = run_quietly(job, ranks, run_folder, variables={})
    if outcome.failure is not None:
        raise RankwiseError("The link between two devices here could not be measured.", outcome.summary(),
                            "Give --link 100gbit, for example.")
    seconds = {int(size): found for size, found in json.loads(file.read_text(encoding="utf-8")).items()}
    return linkfit.fitted("measured here", seconds, "All-reduces of two ranks on this machine.")
