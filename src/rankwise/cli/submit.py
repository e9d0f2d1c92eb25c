"""`rankwise submit`: a training as a job of a cluster; a file beside this one for each kind of cluster."""

from __future__ import annotations

import typer

from rankwise.cli import submit_k8s, submit_ray, submit_slurm

_EXAMPLES = """\b
Examples:
  rankwise submit slurm train.py --nodes 2 --devices 4 --dry-run                 what would be submitted, to read
  rankwise submit slurm doctor --nodes 2 --devices 4                             are the machines fit to train on?
  rankwise submit slurm train.py --nodes 2 --devices 4 -- --epochs 90            submitted, and followed to its end
  rankwise submit k8s train.py --image REGISTRY/train:cu126 --nodes 2 --devices 8 --claim training-data
  rankwise submit ray train.py --nodes 2 --devices 4 --max-restarts 3

Exit code: that of the training or the doctor, 1 where the cluster ended the job; 0 submitted (with --no-follow), 2 it
could not be submitted as given, 130 interrupted: the job is ended then. Each command's own --help says more.
"""


def add_to(app: typer.Typer) -> None:
    """Make it a group of commands of `app`."""
    group = typer.Typer(help="Run a training, or the doctor, as a job of a cluster: on --nodes machines with --devices "
                             "each, as `rankwise run` or `rankwise doctor` would on each of them.",
                        short_help="Run a training, or the doctor, as a job of a cluster.", epilog=_EXAMPLES,
                        rich_markup_mode=None)
    group.callback(invoke_without_command=True)(_submit)
    submit_slurm.add_to(group)
    submit_k8s.add_to(group)
    submit_ray.add_to(group)
    app.add_typer(group, name="submit")


def _submit(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
