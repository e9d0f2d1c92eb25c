"""torch's elastic agent, told which failures are worth another attempt; it says what failed and where it goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from rankwise import runfolder
from rankwise.launcher import streams
from rankwise.launcher.failure import Failure, first
from rankwise.sidechannel import SideChannel


class Agent(LocalElasticAgent):
    """Starts the ranks of this machine, and again after a failure, as often as its spec's `max_restarts` says.

    A failure that would come again the same way is not tried again, nor any once `may_restart` says no. `line` is the
    ranks' own beside their training.
    """

    def __init__(self, *args: Any, run_folder: Callable[[], Path], line: Callable[[], SideChannel | None],
                 may_restart: Callable[[], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._run_folder, self._line, self._may_restart = run_folder, line, may_restart
        self._has_told = False

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed() and self._remaining_restarts > 0:
            failures = failures_of(result, self._run_folder())
            if any(failure.is_final for failure in failures.values()) or not self._may_restart():
                self._remaining_restarts = 0
            else:
                self._tell(failures, worker_group)
        return result

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        super()._stop_workers(worker_group)
        for worker in worker_group.workers:   # each rank leads a process group: what it started ends with it
            with contextlib.suppress(ProcessLookupError, PermissionError, TypeError):
                os.killpg(worker.id, signal.SIGKILL)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if not self._has_told:
            self._say("rankwise: another machine waits to take part, or has lost its ranks.\n"
                      f"  All ranks start again, from {self._beginning()}.", worker_group, {})
        self._has_told = False
        super()._restart_workers(worker_group)

    def _tell(self, failures: dict[int, Failure], worker_group: WorkerGroup) -> None:
        rank, total = first(failures), worker_group.spec.max_restarts
        if failures[rank].account:
            streams.clear_line()
            print(f"{failures[rank].account}\n", file=sys.stderr, flush=True)
        self._say(f"rankwise: rank {rank} of {worker_group.workers[0].world_size} failed{self._at_step(rank)}: "
                  f"{failures[rank].summary}\n  Restart {total - self._remaining_restarts + 1} of {total}, "
                  f"from {self._beginning()}.", worker_group, failures)
        self._has_told = True

    def _beginning(self) -> str:
        newest = runfolder.newest_step(self._run_folder())
        return "the beginning: there is no checkpoint yet" if newest is None else f"step {newest}"

    def _say(self, text: str, worker_group: WorkerGroup, failures: dict[int, Failure]) -> None:
        streams.clear_line()
        print(text, file=sys.stderr, flush=True)
        for worker in worker_group.workers:
            log = streams.log_file(self._run_folder(), worker.global_rank)
            own = failures.get(worker.global_rank)
            streams.add_line(log, "\n".join([*([own.text or own.summary] if own else []), f"--- {text}"]))

    def _at_step(self, rank: int) -> str:
        """The step that this rank last told of, which it does once a second; that of the checkpoint, if it is later."""
        line = self._line()
        try:
            step = line.read(f"step/{rank}") if line is not None else None
        except ConnectionError:   # the store lies on another machine, which may be the one that failed
            step = None
        last = max(int(step or 0), runfolder.newest_step(self._run_folder()) or 0)
        return f" at about step {last}" if last else ""


def failures_of(result: RunResult, run_folder: Path) -> dict[int, Failure]:
    """How the ranks of this machine failed, by rank."""
    return {rank: Failure.of_process(process.exitcode, process.error_file_data, float(process.timestamp),
                                     streams.log_file(run_folder, rank))
            for rank, process in result.failures.items()}
