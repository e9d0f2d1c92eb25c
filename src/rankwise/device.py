"""Which devices there are, and which of them a rank computes on."""

from __future__ import annotations

import torch

from rankwise.errors import UsageError
from rankwise.world import World


def kind_of_device(asked: str) -> str:
    """`cpu`, `cuda` or `mps`: what was asked for, or with `auto` the best that is here.

    Raises UsageError where the kind asked for is not here.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(kind for kind, present in here.items() if present)
    if not here.get(asked, False):
        present = ", ".join(kind for kind, is_here in here.items() if is_here)
        raise UsageError(f"--accelerator is {asked}.", f"This machine has {present}.",
                         "Leave --accelerator out, or choose one of these.")
    return asked


def count(kind: str) -> int | None:
    """How many devices of this kind are here; None for a CPU, where a device is a process and any count will do."""
    return torch.cuda.device_count() if kind == "cuda" else 1 if kind == "mps" else None


def device_of(world: World, kind: str) -> torch.device:
    """The device of this rank; on CUDA it becomes the current one."""
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def seed_torch(device: torch.device, seed: int) -> None:
    """The generators that torch draws from on the host and on this device; what torch.manual_seed does, but sooner."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
