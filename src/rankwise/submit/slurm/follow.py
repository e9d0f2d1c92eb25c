"""Follows a Slurm job to its end: why it waits, what it writes, and its exit code; through a requeue too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from rankwise.errors import EXIT_PREEMPTED, RankwiseError
from rankwise.launcher.streams import Followed
from rankwise.submit.slurm import cluster
from rankwise.submit.slurm.cluster import State
from rankwise.submit.slurm.job import SlurmJob

_SILENCE_SECONDS = 300.0    # that the controller may be away for, as when it is started anew
_REQUEUE_SECONDS = 10.0     # between the end of a script that asked to be queued again, and its being so
_LATE_SECONDS = 5.0         # for the last lines to come over a shared disk


def follow(job: SlurmJob, job_id: str, folder: Path, tell: Callable[[str], None], *, look_seconds: float = 2.0) -> int:
    """Show what the job writes into `folder` until it ends; returns its exit code, 1 where Slurm ended it.

    An element of an array is shown when it has ended; the code is the first that is not 0. `tell` is called with what
    there is to say besides. Raises RankwiseError where Slurm does not know the job any more, or is silent for minutes.
    """
    watch = _Watch(job, job_id, folder, tell)
    heard_at = time.monotonic()
    while True:
        states = cluster.states(job_id)
        if states is not None:
            heard_at = time.monotonic()
            watch.see(states)
            if watch.is_over:
                return watch.exit_code
        elif time.monotonic() - heard_at > _SILENCE_SECONDS:
            raise RankwiseError(f"Slurm has not answered for {_SILENCE_SECONDS:.0f} s.", f"Job {job_id} may still run.",
                                f"See `scontrol show job {job_id}`, and its output in {folder}.")
        time.sleep(look_seconds)


class _Watch:
    """What has been seen of a job so far."""

    def __init__(self, job: SlurmJob, job_id: str, folder: Path, tell: Callable[[str], None]) -> None:
        self._job, self._job_id, self._folder, self._tell = job, job_id, folder, tell
        self._said = ""
        self._ended: dict[int | None, State] = {}
        self._output = Followed(folder / job.output_of(job_id))
        self._asked_to_end_at: float | None = None
        self.is_over = False

    @property
    def exit_code(self) -> int:
        return next((state.exit_code for state in self._ended.values() if state.exit_code), 0)

    def see(self, states: list[State]) -> None:
        for state in states:
            if not state.has_ended:
                self._say(state)
            elif state.element not in self._ended and not self._may_come_back(state):
                self._ended[state.element] = state
                self._show_end(state)
        if not self._job.worlds:
            self._output.show()
        self.is_over = len(self._ended) == max(1, len(self._job.worlds)) or (
            bool(states) and all(state.has_ended for state in states) and None in self._ended)

    def _say(self, state: State) -> None:
        again = f", started again {state.restarts} x" if state.restarts else ""
        why = f" ({state.reason})" if state.word == "PENDING" and state.reason not in ("", "None") else ""
        said = f"Job {self._job_id} is {state.word.lower()}{why}{again}."
        if said != self._said and not self._job.worlds:
            self._tell(said)
            self._said = said
        self._asked_to_end_at = None

    def _may_come_back(self, state: State) -> bool:
        """Whether the job, asked to end, is about to be queued again."""
        if not self._job.goes_on or state.exit_code != EXIT_PREEMPTED:
            return False
        self._asked_to_end_at = self._asked_to_end_at or time.monotonic()
        return time.monotonic() - self._asked_to_end_at < _REQUEUE_SECONDS

    def _show_end(self, state: State) -> None:
        if state.element is not None:
            _wait_for(self._folder / self._job.output_of(self._job_id, state.element))
            sys.stdout.write(f"\n--- {state.element} device{'s' * (state.element != 1)}\n")
            Followed(self._folder / self._job.output_of(self._job_id, state.element)).show()
        else:
            _wait_for(self._folder / self._job.output_of(self._job_id))
            self._output.show()
        sys.stdout.flush()
        if state.word not in ("COMPLETED", "FAILED"):
            self._tell(f"Slurm has ended job {self._job_id}: {state.word.lower().replace('_', ' ')}"
                       f"{f' ({state.reason})' if state.reason not in ('', 'None') else ''}.")
        elif state.exit_code and state.reason not in ("", "None", "NonZeroExitCode"):
            self._tell(f"Job {self._job_id} has failed: {state.reason}.")


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + _LATE_SECONDS
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
