"""One rank's life: open its Run, hand it to the training function, and leave the group in good order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from rankwise import environment, runfolder
from rankwise.collectives import compared
from rankwise.device import device_of, kind_of_device
from rankwise.errors import Preempted, UsageError
from rankwise.group import Group
from rankwise.launcher import layout
from rankwise.launcher.lastwords import recorded, watched_over
from rankwise.launcher.preemption import heeded
from rankwise.modes import open_mode, resolve
from rankwise.monitor import Monitor
from rankwise.pulse import PULSE
from rankwise.run import Run
from rankwise.settings import Settings
from rankwise.sidechannel import SideChannel
from rankwise.stepagreement import StepAgreement
from rankwise.trial.plan import TrialPlan
from rankwise.trial.run import TrialRun
from rankwise.world import World

_FOLDER = "run_folder"
_INTERRUPTED_SECONDS = 1.5   # for the last checkpoint; the launcher kills its ranks after 2


def run_rank(function: Callable[..., Any], arguments: dict[str, Any], settings: Settings, world: World,
             *, folder: Path | None, target: str, is_hosted: bool = False) -> Any:
    """Call `function(run, **arguments)` as one rank of `world`; returns what it returns.

    `folder` is the run's, None where no launcher of ours chose one: rank 0 then does, named after `target`.
    `is_hosted` says that the process is not the training's own, as a notebook's kernel: it is not ended in a stall.
    """
    debugged = compared(settings.timeout) if settings.debug and world.size > 1 else contextlib.nullcontext()
    with recorded(), debugged:
        layout.require_device(settings, world)
        device = device_of(world, kind_of_device(settings.accelerator))
        threads = settings.threads or (1 if settings.exact is not None else None)   # they decide the bits of a sum
        if threads is not None:
            torch.set_num_threads(threads)
        group = Group.open(world, device, timeout_seconds=settings.timeout)
        try:
            agreed, resume_from = _agreed_folders(settings, group, folder, target)
        except BaseException:
            group.close()
            raise
        try:
            with (contextlib.nullcontext() if is_hosted else watched_over(settings, world, agreed),
                  open_run(settings, group, folder=agreed, resume_from=resume_from) as run, recorded()):
                return function(run, **arguments)
        except UsageError:
            if folder is None and group.is_main:   # else the launcher sees to it
                runfolder.discard_unused(agreed)
            raise


def _agreed_folders(settings: Settings, group: Group, folder: Path | None, target: str) -> tuple[Path, Path | None]:
    """The run's folder, and what it resumes from, as rank 0 sees them."""
    found: tuple[Path, Path | None] | None = None
    if group.is_main:
        resume_from = runfolder.resume_from(settings)   # before a new folder is the latest
        found = (folder or _chosen(settings, group.world, target), resume_from)
    agreed = group.broadcast_object(found)
    assert agreed is not None
    return agreed


def _chosen(settings: Settings, world: World, target: str) -> Path:
    """The folder that rank 0 chooses for a run, where its launcher did not.

    torchrun may start the ranks again. Its store outlives them, and has word of the folder from the first attempt.
    """
    memory = SideChannel.open(world, limit_seconds=settings.timeout, attempt=0) if environment.is_elastic() else None
    remembered = memory.read(_FOLDER) if memory is not None else None
    if remembered is not None:
        return Path(remembered)
    chosen = runfolder.choose(settings, target)
    if memory is not None:
        memory.post(_FOLDER, str(chosen.resolve()))
    return chosen


@contextlib.contextmanager
def open_run(settings: Settings, group: Group, *, folder: Path, resume_from: Path | None = None) -> Iterator[Run]:
    """A Run over the ranks of `group`, which is closed with it. How this rank ended is told to the others."""
    torch.manual_seed(settings.seed)   # ranks that build a model build the same one
    mode = open_mode(resolve(settings, group.world), group=group, devices=settings.devices or 1, amp=settings.amp,
                     exact=settings.exact)
    file = environment.trial()
    plan = None if file is None else TrialPlan.read(file)
    monitor = Monitor(group, folder, settings, keeps_books=plan is None)
    monitor.begin(mode.name, group.size * mode.replicas)
    channel = SideChannel.open(group.world, limit_seconds=settings.timeout)
    agreement = StepAgreement(channel, limit_seconds=settings.timeout)
    parts: dict[str, Any] = {"group": group, "mode": mode, "monitor": monitor, "agreement": agreement,
                             "folder": folder, "resume_from": resume_from}
    run = Run(settings, **parts) if plan is None else TrialRun(plan, settings, **parts)
    limit_seconds, end = None, "failed"
    PULSE.is_over, PULSE.steps_before = False, 0   # as an earlier run in this process may have left them
    try:
        with heeded(agreement, channel, grace_seconds=settings.grace_seconds, run_folder=folder):
            yield run
        PULSE.is_over = True
        run.finish()
        end = "finished"
        group.ended(f"returned from the training function at step {run.steps}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            limit_seconds, end = _INTERRUPTED_SECONDS, "interrupted"
        elif isinstance(error, Preempted):
            end = "preempted"
        elif isinstance(error, SystemExit) and not error.code:
            end = "finished"
        how = "ended with sys.exit" if isinstance(error, SystemExit) else f"failed with {type(error).__name__}"
        group.ended(f"{'was asked to end' if isinstance(error, Preempted) else how} at step {run.steps}")
        raise
    finally:
        agreement.close()
        run.close(end, limit_seconds)
        group.close()
