"""What two ranks run to time their link: all-reduces of growing size. As a job: `-m rankwise.plan.allreduce FILE`."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from rankwise import environment
from rankwise.device import device_of, kind_of_device
from rankwise.group import backend_of
from rankwise.settings import Settings
from rankwise.stopwatch import all_reduces
from rankwise.world import World

_LONGEST_SECONDS = 1.0   # after an all-reduce that takes so long, no larger one is timed


def main(file: Path) -> None:
    """Time all-reduces over all ranks of this job; rank 0 writes {bytes: [seconds, ...]} to `file`."""
    world, settings = environment.world() or World(), environment.settings() or Settings()
    device = device_of(world, kind_of_device(settings.accelerator))
    dist.init_process_group(backend_of(device), timeout=timedelta(seconds=settings.timeout))
    try:
        found = dict(all_reduces(device, longest_seconds=_LONGEST_SECONDS))
        if world.is_main:
            file.write_text(json.dumps(found), encoding="utf-8")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
