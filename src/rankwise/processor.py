"""The processor of this machine: its name, and how many of its cores this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_FACTS = Path("/proc/cpuinfo")


def model() -> str:
    """The model that the system names."""
    if _FACTS.exists():
        for line in _FACTS.read_text("utf-8", "replace").splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
