"""What a log begins with: what is trained, how it is laid out, and on what."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import torch

from rankwise import environment, processor
from rankwise.group import Group, backend_of
from rankwise.settings import Settings


def facts_of_start(group: Group, settings: Settings, *, target: str | None, mode: str, devices: int) -> dict[str, Any]:
    """Plain JSON values; nothing of the environment's variables, and no names of users or machines."""
    from rankwise import __version__
    return {"attempt": environment.attempt(), "target": target, "mode": mode, "devices": devices,
            "world_size": group.size, "settings": asdict(settings),
            "environment": {"rankwise": __version__, "python": platform.python_version(), "torch": torch.__version__,
                            "platform": platform.platform(), "device": device_name(group.device),
                            "cores": processor.cores(), "threads": torch.get_num_threads(),
                            "backend": backend_of(group.device) if group.size > 1 else None}}


def device_name(device: torch.device) -> str:
    """The name of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor.model()
