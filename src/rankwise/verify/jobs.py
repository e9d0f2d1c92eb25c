"""Runs one layout of a training as a job of its own, with a witness in each rank, and reads what they wrote."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rankwise import environment
from rankwise.launcher import layout as ranks
from rankwise.launcher.job import Job
from rankwise.launcher.quiet import run_quietly
from rankwise.launcher.target import Target
from rankwise.settings import Settings
from rankwise.verify.evidence import Evidence, read, steps_made
from rankwise.verify.layouts import Layout
from rankwise.witness.plan import Plan

_LATER_SECONDS = 15.0   # the witness in a rank that waits speaks first, for it can say where the rank is

Tell = Callable[[int], None]
"""Is told how many steps a job has made."""


class Jobs:
    """Starts the jobs of one verification, one after the other; their folders stand in `folder`."""

    def __init__(self, target: Target, arguments: Sequence[str], settings: Settings, *, steps: int,
                 patience_seconds: float, folder: Path) -> None:
        self._job = Job.of(target, arguments, has_terminal=False, can_save=False)
        self._settings = settings.having(log_every=1, debug=True, max_restarts=0,
                                         timeout=patience_seconds + _LATER_SECONDS,
                                         threads=settings.threads or 1, runs=str(folder / "runs"))
        self._steps, self._patience_seconds, self._folder = steps, patience_seconds, folder
        self._numbers = itertools.count(1)

    def run(self, layout: Layout, tell: Tell, *, changes: Sequence[str] = (), reference: Path | None = None,
            label: str = "") -> Evidence:
        """One job to its end. What fails in it is in the evidence; KeyboardInterrupt is raised."""
        number = next(self._numbers)
        folder, run_folder = self._folder / f"{number}", self._folder / "runs" / f"{number}"
        folder.mkdir(parents=True)
        run_folder.mkdir(parents=True)
        settings = ranks.with_devices(self._settings.having(mode=layout.mode, devices=layout.devices))
        plan = Plan(folder=str(folder), steps=self._steps, seed=settings.seed, changes=list(changes),
                    patience_seconds=self._patience_seconds, reference=str(reference) if reference else None)
        began = time.monotonic()
        world_size, failure = self._launch(settings, plan, run_folder, lambda: tell(steps_made(folder)))
        return read(folder, label or str(layout), world_size, failure=failure, run_folder=run_folder,
                    seconds=time.monotonic() - began)

    def _launch(self, settings: Settings, plan: Plan, run_folder: Path,
                meanwhile: Callable[[], None]) -> tuple[int, str]:
        """The number of ranks, and what is told of a failure."""
        outcome = run_quietly(self._job, settings, run_folder, variables={environment.WITNESS: str(plan.write())},
                              meanwhile=meanwhile)
        return outcome.world_size, outcome.failure_in_words
