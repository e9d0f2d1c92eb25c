"""From what a command line asks for to a Slurm job, and from there to its end; what cannot be is refused before."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rankwise import listoptions, runfolder
from rankwise.errors import EXIT_INTERRUPTED, UsageError
from rankwise.launcher.target import resolve
from rankwise.settings import Settings, option
from rankwise.submit.slurm import cluster, disks, room
from rankwise.submit.slurm.follow import follow
from rankwise.submit.slurm.job import WORLD, SlurmJob
from rankwise.submit.slurm.script import script
from rankwise.submit.work import Work

_OF_VERIFY = ("accelerator", "amp", "seed", "exact")
_OF_A_JOB = ("devices", "nodes", "node_rank", "endpoint", "name", "resume")


def job_of(work: Work, *, verify: str | None, **asked: Any) -> SlurmJob:
    """The job that does this work; `verify` is a list of worlds, `asked` further fields of SlurmJob.

    Raises UsageError for values that cannot be used, and for a target or a run that is not there.
    """
    target = None if work.is_doctor else resolve(work.target, as_module=work.is_module)
    worlds = () if verify is None else _worlds(verify)
    if not work.is_doctor and not worlds:
        runfolder.resume_from(work.settings)
    return SlurmJob(
        name=work.name, nodes=work.nodes, devices=max(worlds, default=work.devices),
        command=(sys.executable, "-m", "rankwise", *(_verifying(work) if worlds else work.words())),
        uses_gpus=work.settings.accelerator in ("auto", "cuda"), worlds=worlds,
        goes_on=target is not None and target.uses_rankwise and work.can_go_on and not worlds,
        grace_seconds=work.settings.grace_seconds, **asked)


def submit(work: Work, job: SlurmJob, tell: Callable[[str], None], *, is_shared: bool, follows: bool) -> int:
    """Hand the job to Slurm, and follow it to its end if asked to; returns its exit code.

    Raises UsageError where the cluster cannot have it, before anything is submitted. Interrupted, it cancels the job.
    """
    cluster.reached()
    machines = room.of_partition(cluster.machines(), job.partition)
    room.require(machines, nodes=job.nodes, devices=job.devices, cores=job.cores, uses_gpus=job.uses_gpus)
    if not is_shared and any(machine.host not in (socket.gethostname(), "localhost") for machine in machines):
        disks.require_shared(_needed(work), [machine.name for machine in machines])
    job_id = cluster.submit(script(job))
    output = job.output_of(job_id) if not job.worlds else job.output_of(job_id).replace(".out", "_*.out")
    tell(f"Job {job_id} is submitted; it writes into {output}. To end it: scancel {job_id}")
    if not follows:
        return 0
    try:
        return follow(job, job_id, Path.cwd(), tell)
    except KeyboardInterrupt:
        cluster.cancel(job_id)
        tell(f"Interrupted; job {job_id} is cancelled. What it had saved stays.")
        return EXIT_INTERRUPTED


def _worlds(verify: str) -> tuple[int, ...]:
    """The elements of the array; one device, the reference in each, is none. Raises UsageError where none is left."""
    worlds = tuple(world for world in listoptions.numbers("--verify", verify) if world > 1)
    if not worlds:
        raise UsageError(f"--verify is {verify}.", "One device is what the others are compared with.",
                         "Give --verify 2,4, for example.")
    return worlds


def _needed(work: Work) -> dict[str, Path]:
    """What the machines have to see: by what it is."""
    found = {"working folder": Path.cwd(), "Python that runs rankwise": Path(sys.prefix)}
    if not work.is_module and Path(work.target).is_file():
        found = {"script": Path(work.target), **found}
    return found


def _verifying(work: Work) -> tuple[str, ...]:
    """The words of `rankwise verify` for an element of the array. Raises UsageError for settings that it has not."""
    if work.nodes > 1 or work.is_doctor:
        raise UsageError(f"--verify is given with {'the doctor' if work.is_doctor else f'--nodes {work.nodes}'}.",
                         "Each element of its array verifies a training on one machine.", "Leave one of them out.")
    changed = [field for field in fields(Settings) if getattr(work.settings, field.name) != field.default]
    other = [option(field.name) for field in changed if field.name not in (*_OF_VERIFY, *_OF_A_JOB)]
    if other:
        raise UsageError(f"--verify is given with {' and '.join(other)}.",
                         f"Of a run's settings a verification has {', '.join(map(option, _OF_VERIFY))}.",
                         "Leave the others out.")
    words = [word for field in changed if field.name in _OF_VERIFY
             for word in (option(field.name), str(getattr(work.settings, field.name)))]
    own = ["--", *work.arguments] if work.arguments else []
    return ("verify", *["-m"] * work.is_module, work.target, "--worlds", WORLD, *words, *own)
