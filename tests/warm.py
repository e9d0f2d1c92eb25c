"""Jobs in ranks from a warm forkserver, which start in a fraction of a second: for tests alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ranks import _context
from rankwise import environment
from rankwise.launcher import layout, streams
from rankwise.launcher.failure import Failure, first
from rankwise.launcher.job import Job
from rankwise.launcher.privatefolder import private_folder
from rankwise.settings import Settings
from rankwise.verify.jobs import Jobs
from rankwise.witness.plan import Plan

_DEADLINE_SECONDS = 90.0
_GRACE_SECONDS = 3.0   # for the other ranks, when one has failed


class WarmJobs(Jobs):
    """As `Jobs`; the launcher is left out, what a rank runs is the same."""

    def _launch(self, settings: Settings, plan: Plan, run_folder: Path,
                meanwhile: Callable[[], None]) -> tuple[int, str]:
        size = layout.ranks_here(settings)
        failures = failures_of(self._job, settings, run_folder, {environment.WITNESS: str(plan.write())})
        if not failures:
            return size, ""
        rank = first(failures)
        return size, f"Rank {rank} of {size} failed: {failures[rank].summary}\n{failures[rank].text}"


def failures_of(job: Job, settings: Settings, run_folder: Path,
                variables: Mapping[str, str] | None = None) -> dict[int, Failure]:
    """The job in warm ranks, to its end; the failure of each rank that did not end well."""
    from rankwise.launcher.rendezvous import _on_loopback
    size = layout.ranks_here(settings)
    store, host, port = _on_loopback()
    shared = {**layout.surroundings(settings, size, run_folder), **(variables or {}),
              "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "MASTER_ADDR": host,
              "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with private_folder() as folder:
        processes = [_context.Process(target=_rank, args=(job, folder, {
            **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), environment.JOB: str(job.write(folder)),
            "TORCHELASTIC_ERROR_FILE": str(folder / f"{rank}.json")})) for rank in range(size)]
        try:
            for process in processes:
                process.start()
            _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.join()
        failures = {rank: _failure(folder / f"{rank}.json", process.exitcode, run_folder, rank)
                    for rank, process in enumerate(processes) if process.exitcode}
    del store
    return failures


def _wait(processes: list[Any]) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        if any(process.exitcode for process in processes):
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        time.sleep(0.01)


def _failure(file: Path, code: int, run_folder: Path, rank: int) -> Failure:
    left = json.loads(file.read_text()) if file.exists() else {}
    return Failure.of_process(code, left, time.time(), streams.log_file(run_folder, rank))


def _rank(job: Job, folder: Path, variables: dict[str, str]) -> None:
    import torch

    from rankwise.launcher import worker
    os.environ.update(variables)
    torch.set_num_threads(1)
    run_folder, world = environment.run_folder(), environment.world()
    assert run_folder is not None
    assert world is not None
    streams.into_file(streams.log_file(run_folder, world.rank))
    worker.leave(worker._run(job, folder, world, run_folder))
