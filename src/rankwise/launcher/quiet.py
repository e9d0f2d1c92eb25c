"""A job that another command needs: its ranks run as always, and nothing of them is shown."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path

from rankwise import environment
from rankwise.launcher.agent import Outcome, run_ranks
from rankwise.launcher.job import Job
from rankwise.launcher.privatefolder import private_folder
from rankwise.settings import Settings


def run_quietly(job: Job, settings: Settings, run_folder: Path, *, variables: Mapping[str, str],
                meanwhile: Callable[[], None] = lambda: None) -> Outcome:
    """The job to its end, with these variables in the environment of its ranks; `meanwhile` is called now and then.

    Raises KeyboardInterrupt when interrupted, and what `run_ranks` raises.
    """
    with (contextlib.redirect_stderr(io.StringIO()), private_folder() as folder, environment.changed(variables)):
        return run_ranks(job, settings, run_folder, folder, meanwhile)
