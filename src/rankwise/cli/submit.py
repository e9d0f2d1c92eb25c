"""`rankwise submit`: a training as a job of a cluster; a file beside this one for each kind of cluster."""

from __future__ import annotations

import typer

from rankwise.cli import submit_k8s, submit_ray, submit_slurm


def add_to(app: typer.Typer) -> None:
    """Make it a group of commands of `app`."""
    group = typer.Typer(help="Run a training, or the doctor, as a job of a cluster.")
    group.callback(invoke_without_command=True)(_submit)
    submit_slurm.add_to(group)
    submit_k8s.add_to(group)
    submit_ray.add_to(group)
    app.add_typer(group, name="submit")


def _submit(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
