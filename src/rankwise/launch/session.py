"""One rank's life: open its Run, hand it to the training function, and leave the group in good order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from rankwise.group import Group
from rankwise.modes import open_mode, resolve
from rankwise.monitor import Monitor
from rankwise.run import Run
from rankwise.settings import Settings


@contextlib.contextmanager
def open_run(settings: Settings, group: Group, *, folder: Path, resume_from: Path | None = None) -> Iterator[Run]:
    """A Run over the ranks of `group`, which is closed with it. How this rank ended is told to the others."""
    torch.manual_seed(settings.seed)   # ranks that build a model build the same one
    mode = open_mode(resolve(settings, group.world), group=group, devices=settings.devices or 1, amp=settings.amp)
    monitor = Monitor(group, folder, settings)
    run = Run(settings, group=group, mode=mode, monitor=monitor, folder=folder, resume_from=resume_from)
    try:
        yield run
        group.report(f"returned from the training function at step {run.steps}")
    except BaseException as error:
        group.report(f"failed with {type(error).__name__} at step {run.steps}")
        raise
    finally:
        run.close()
        group.close()
