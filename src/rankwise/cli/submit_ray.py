"""`rankwise submit ray`: a training as a job of a running Ray cluster."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rankwise.cli.settings import with_settings_of_a_job

_EXAMPLES = """\b
Examples:
  rankwise submit ray train.py --nodes 2 --devices 4 -- --epochs 20
  rankwise submit ray train.py --nodes 2 --devices 4 --cores-per-device 8 --max-restarts 3 --save-every 10min
  rankwise submit ray train.py --address 10.0.0.1:6379 --accelerator cpu --dry-run
  rankwise submit ray doctor --nodes 4 --devices 8

Exit code: that of the training, 2 it could not be submitted as given, 130 interrupted: nothing of it runs then.
"""


def add_to(group: typer.Typer) -> None:
    """Make it a command of `group`."""
    group.command("ray", short_help="Run a training, or the doctor, on a running Ray cluster.",
                  epilog=_EXAMPLES)(with_settings_of_a_job(_ray))


def _ray(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), the name "
                                          "of a recipe (fashion), with -m a module; or `doctor`, which has "
                                          "--devices, --accelerator and --timeout.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                          help="Options of the target itself.")] = None, *,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
    address: Annotated[str, typer.Option(help="HOST:PORT of the cluster's head; auto: the cluster that this machine is "
                                         "a node of")] = "auto",
    cores_per_device: Annotated[int, typer.Option(min=1, help="cores that Ray keeps for each device, and threads of "
                                                  "each rank")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what each node would run, and submit "
                                          "nothing")] = False,
    **settings: Any,
) -> int:
    """Run a training on nodes of a running Ray cluster, from a machine of it.

    Ray Train places a worker on each of --nodes nodes, with --devices GPUs (none with --accelerator cpu), and the
    worker runs `rankwise run` there. All nodes have to see this folder, and to have the same rankwise and Ray.
    """
    from rankwise.submit.ray.submission import job_of, submit
    from rankwise.submit.work import Work
    work = Work.of(target, arguments, settings, is_module=module)
    work.require_name(resume=settings["resume"])
    job = job_of(work, address=address, cores=cores_per_device)
    if dry_run:
        print(job.described())
        return 0
    return submit(job, lambda text: print(f"rankwise: {text}", file=sys.stderr, flush=True))
