"""`rankwise submit slurm`: a training as a Slurm job."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rankwise.cli.settings import with_settings_of_a_job

_EXAMPLES = """\b
Examples:
  rankwise submit slurm train.py --nodes 2 --devices 4 --dry-run            the batch script, to read
  rankwise submit slurm train.py --nodes 2 --devices 4 --time 12:00:00 -- --epochs 90
  rankwise submit slurm fashion --devices 4 --accelerator cpu --no-follow   submitted, and left alone
  rankwise submit slurm train.py --verify 2,4            an array: is it the same training on 2 devices, and on 4?
  rankwise submit slurm doctor --nodes 4 --devices 8     are these machines fit to train on?
  rankwise submit slurm train.py --sbatch=--qos=long --sbatch=--exclusive

Exit code: that of the job, 1 where Slurm ended it; 0 submitted (with --no-follow), 2 it could not be submitted as
given, 130 interrupted: the job is cancelled then.
"""


def add_to(group: typer.Typer) -> None:
    """Make it a command of `group`."""
    group.command("slurm", short_help="Run a training, or the doctor, as a Slurm job.",
                  epilog=_EXAMPLES)(with_settings_of_a_job(_slurm))


def _slurm(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), the name of "
                                          "a recipe (fashion), or with -m a module; or `doctor`, "
                                          "which has --devices, --accelerator and --timeout.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                          help="Options of the target itself.")] = None, *,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
    partition: Annotated[str | None, typer.Option(show_default=False, help="partition of the cluster (default: its "
                                                  "own)")] = None,
    account: Annotated[str | None, typer.Option(show_default=False, help="account that is charged")] = None,
    time: Annotated[str | None, typer.Option(show_default=False, help="limit of the job: 12:00:00, 2-00 (default: the "
                                             "partition's)")] = None,
    cores_per_device: Annotated[int, typer.Option(min=1, help="cores for each device, its data workers included")] = 1,
    memory: Annotated[str | None, typer.Option(show_default=False, help="memory of each machine: 64G (default: the "
                                               "partition's)")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(show_default=False, help="a further option of sbatch: "
                                                     "--sbatch=--qos=long; may be given again")] = None,
    verify: Annotated[str | None, typer.Option(show_default=False, help="not a training but an array of jobs: 2,4 "
                                               "verifies TARGET on 2 devices in one job, and on 4 in another")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="the machines have script, folder and Python at the same "
                                         "paths, whatever the disk looks like")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the batch script, and submit nothing")] = False,
    follow: Annotated[bool, typer.Option(help="show the job's output and return its exit code")] = True,
    **settings: Any,
) -> int:
    """Run a training on machines of a Slurm cluster.

    Each of --nodes machines gives --devices GPUs (with --accelerator cpu none) and runs `rankwise run`. A job that is
    asked to end, before its limit or for a better one, saves and is queued again; it goes on where it was, for it is
    given --name and --resume auto.
    """
    from rankwise.submit.slurm.script import script
    from rankwise.submit.slurm.submission import job_of, submit
    from rankwise.submit.work import Work
    work = Work.of(target, arguments, settings, is_module=module)
    work.require_name(resume=settings["resume"])
    job = job_of(work, verify=verify, partition=partition, account=account, time=time, memory=memory,
                 cores_per_device=cores_per_device, options=tuple(sbatch or ()))
    if dry_run:
        print(script(job), end="")
        return 0
    return submit(work, job, lambda text: print(f"rankwise: {text}", file=sys.stderr, flush=True), is_shared=shared,
                  follows=follow)
