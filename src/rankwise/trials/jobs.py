"""Runs a target for some steps as a job of its own, in any layout, and reads what its ranks measured."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankwise import environment
from rankwise.errors import RankwiseError
from rankwise.launcher import layout
from rankwise.launcher.job import Job
from rankwise.launcher.quiet import run_quietly
from rankwise.launcher.target import Target
from rankwise.settings import Settings
from rankwise.trial.plan import TrialPlan
from rankwise.trial.result import steps_made
from rankwise.trials.result import Trial, read

_SELDOM_STEPS = 1_000_000   # a trial keeps its own books


def _nobody(steps: int) -> None:
    """Who wants to know how far a trial is."""


class Trials:
    """Starts trials of one target, one after the other; their folders stand in `folder`."""

    def __init__(self, target: Target, arguments: Sequence[str], settings: Settings, *, folder: Path) -> None:
        self._target, self._arguments, self._folder = target, list(arguments), folder
        self._settings = settings.having(log_every=_SELDOM_STEPS, max_restarts=0, resume=None, save_every=None,
                                         runs=str(folder / "runs"))
        self._numbers = itertools.count(1)

    def run(self, *, steps: int, warm_up: int, tell: Callable[[int], None] = _nobody, arguments: Sequence[str] = (),
            arrivals: bool = False, **changes: Any) -> Trial:
        """One trial to its end: `steps` are measured after `warm_up` others.

        `changes` are settings of this trial, `arguments` more options of the target, `tell` is given the steps made so
        far. A job that fails, or settings that cannot be used, are in the result; KeyboardInterrupt is raised.
        """
        number = next(self._numbers)
        folder, run_folder = self._folder / f"{number}", self._folder / "runs" / f"{number}"
        for each in (folder, run_folder):
            each.mkdir(parents=True)
        plan = TrialPlan(folder=str(folder), steps=steps, warm_up=warm_up, arrivals=arrivals,
                         is_plain=not self._target.uses_rankwise)
        launched_at = time.time()
        try:
            settings = layout.with_devices(self._settings.having(**changes))
            job = Job.of(self._target, [*self._arguments, *arguments], has_terminal=False, can_save=False)
            outcome = run_quietly(job, settings, run_folder, variables={environment.TRIAL: str(plan.write())},
                                  meanwhile=lambda: tell(steps_made(folder)))
            world_size, failure = outcome.world_size, outcome.failure_in_words
        except RankwiseError as error:
            world_size, failure = 0, str(error)
        return read(folder, world_size, launched_at=launched_at, failure=failure, wanted_steps=warm_up + steps)
