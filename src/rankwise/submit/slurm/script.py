"""The batch script of a Slurm job, as a person would write it."""

from __future__ import annotations

import shlex
from importlib import resources

import jinja2

from rankwise import __version__
from rankwise.submit.slurm.batchoptions import quoted
from rankwise.submit.slurm.job import WORLD, SlurmJob


def script(job: SlurmJob) -> str:
    """The script that sbatch is given."""
    text = resources.files("rankwise.submit.slurm").joinpath("templates").joinpath("job.sbatch.j2").read_text("utf-8")
    environment = jinja2.Environment(  # noqa: S701 - a shell script, whose words are quoted for the shell
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["quoted"] = quoted
    command = " ".join(f'"{WORLD}"' if word == WORLD else shlex.quote(word) for word in job.command)
    return environment.from_string(text).render(job=job, command=command, version=__version__)
