"""Starts the ranks of this machine, and says how they ended."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise import environment, runfolder
from rankwise.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_USAGE, RankwiseError
from rankwise.launcher import layout, streams
from rankwise.launcher.failure import Failure, first
from rankwise.launcher.job import Job
from rankwise.launcher.privatefolder import private_folder
from rankwise.settings import Settings

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from rankwise.launcher.target import Target

_AFTER_THE_LAST_SECONDS = 10.0   # beyond the ranks' own limit, for the other launchers
_PACKAGES = str(Path(__file__).parents[2])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the ranks of this machine ended: `rank` is the one that failed first, None where all ended well.

    With `is_preempted` they were asked to end, and may be continued.
    """

    world_size: int
    run_folder: Path
    rank: int | None = None
    failure: Failure | None = None
    is_preempted: bool = False

    @property
    def exit_code(self) -> int:
        if self.is_preempted:
            return EXIT_PREEMPTED
        return 0 if self.failure is None else self.failure.exit_code

    def show(self) -> None:
        """Print how it ended, unless it ended well: the first failure in full, whose it was, where the rest stands."""
        if self.is_preempted:
            streams.clear_line()
            print(f"rankwise: every rank has ended, as asked. {self._way_on()}", file=sys.stderr)
        if self.failure is None:
            return
        account = self.failure.account or self.failure.tail
        said = f"{account}\n\n" if account else ""
        streams.clear_line()
        print(f"{said}{self.summary()}{self.logs()}", file=sys.stderr)

    def _way_on(self) -> str:
        newest = runfolder.newest_step(self.run_folder)
        if newest is None:
            return "There is no checkpoint."
        return f"The newest checkpoint is of step {newest}; to go on: --resume {self.run_folder.name}"

    def summary(self) -> str:
        """Whose the first failure was."""
        assert self.failure is not None
        return f"Rank {self.rank} of {self.world_size} failed: {self.failure.summary}"

    @property
    def failure_in_words(self) -> str:
        """Whose the first failure was, and what it said; nothing where all ended well."""
        if self.failure is None:
            return ""
        return f"{self.summary()}\n{self.failure.text or self.failure.tail}".strip()

    def logs(self) -> str:
        """Where the log files are; nothing where the run never began."""
        folder = streams.log_file(self.run_folder, 0).parent
        return f"\n  Log files of all ranks: {folder}" if folder.is_dir() else ""


def run_target(target: Target, arguments: Sequence[str], settings: Settings) -> int:
    """What `rankwise run` does: the target on every rank; returns the exit code, having said why where it is not 0.

    Raises UsageError before any rank starts.
    """
    job = Job.of(target, arguments, can_save=target.uses_rankwise)
    if target.uses_rankwise and not {"-h", "--help"}.isdisjoint(arguments):
        from rankwise.launcher.worker import show_help
        return show_help(job, settings)
    settings = layout.with_devices(settings)
    run_folder = choose_folder(settings, target.name)
    try:
        if layout.is_one_process(settings):
            from rankwise.launcher.worker import run_here
            return run_here(job, settings, run_folder)
        with private_folder() as folder:
            outcome = run_ranks(job, settings, run_folder, folder)
    except KeyboardInterrupt:
        streams.clear_line()
        print("rankwise: interrupted; every rank has ended.", file=sys.stderr)
        return EXIT_INTERRUPTED
    outcome.show()
    return outcome.exit_code


def choose_folder(settings: Settings, target: str) -> Path:
    """The run's folder; on another machine than the first, only the folder that will hold it."""
    return runfolder.choose(settings, target) if settings.node_rank == 0 else Path(settings.runs)


def run_ranks(job: Job, settings: Settings, run_folder: Path, folder: Path,
              meanwhile: Callable[[], None] | None = None) -> Outcome:
    """The job on every rank of this machine, to its end; `folder` is private and holds what the ranks read and leave.

    `meanwhile` is called now and then; without it, a job that has no terminal has its output shown then.
    Raises KeyboardInterrupt when interrupted and RankwiseError where the machines did not meet or end together.
    """
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    from rankwise.launcher.errorfiles import ErrorFiles
    from rankwise.launcher.gathering import Over
    from rankwise.launcher.rendezvous import Rendezvous
    from rankwise.launcher.restarts import Agent
    from rankwise.launcher.signals import Notice
    from rankwise.launcher.supervisor import supervise
    ranks = layout.ranks_here(settings)
    job_file = job.write(folder)
    rendezvous, notice = Rendezvous(settings, run_folder), Notice(settings.grace_seconds, heeded=job.can_save)
    files = ErrorFiles(folder, lambda: {**layout.surroundings(settings, ranks, rendezvous.run_folder),
                                        environment.JOB: str(job_file), environment.ATTEMPT: str(rendezvous.attempt)})
    spec = WorkerSpec(role="rank", local_world_size=ranks, entrypoint=sys.executable, args=("-c", _worker_code()),
                      rdzv_handler=rendezvous, max_restarts=settings.max_restarts)
    agent = Agent(spec, files, exit_barrier_timeout=settings.timeout, run_folder=lambda: rendezvous.run_folder,
                  line=lambda: rendezvous.line,
                  may_restart=lambda: not (notice.is_given or files.has_preempted()))
    if meanwhile is None and not job.has_terminal:
        meanwhile = streams.Followed(streams.log_file(run_folder, 0)).show
    problem = f"Machine {settings.node_rank} ended, and its ranks with it."
    try:
        with _quiet_agent():
            result = supervise(agent, limit_seconds=settings.timeout + _AFTER_THE_LAST_SECONDS, notice=notice,
                               meanwhile=meanwhile or (lambda: None), has_failed=files.has_word_of)
        if result is not None and not result.is_failed():
            problem = ""
    except Over:
        print("rankwise: the run has ended; this machine was not needed.", file=sys.stderr)
        return Outcome(world_size=0, run_folder=rendezvous.run_folder)
    finally:
        rendezvous.leave(problem)
    if result is None or files.has_preempted() or (notice.is_given and result.is_failed()):
        return Outcome(world_size=_world_size(agent), run_folder=rendezvous.run_folder, is_preempted=True)
    return _outcome(_world_size(agent), result, rendezvous.run_folder)


def _world_size(agent: LocalElasticAgent) -> int:
    """0 where the machines have not met."""
    return max((worker.world_size for worker in agent.get_worker_group().workers), default=0)


def _outcome(world_size: int, result: RunResult, run_folder: Path) -> Outcome:
    from rankwise.launcher.restarts import failures_of
    if not result.is_failed():
        return Outcome(world_size=world_size, run_folder=run_folder)
    failures = failures_of(result, run_folder)
    for rank, failure in failures.items():
        streams.add_line(streams.log_file(run_folder, rank), failure.text or failure.summary)
    rank = first(failures)
    if failures[rank].exit_code == EXIT_USAGE:
        runfolder.discard_unused(run_folder)
    return Outcome(world_size=world_size, run_folder=run_folder, rank=rank, failure=failures[rank])


def _worker_code() -> str:
    """What a rank's interpreter runs first. Unlike -m it does not look into the current folder for modules."""
    # Interrupted while it loads, a rank ends without a word.
    code = (f"import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); sys.path[0] = {_PACKAGES!r}; "
            f"from rankwise.launcher.worker import main; main({os.getpid()})")
    return code.replace("$", "$$")   # the agent fills in templates


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """What torch's agent logs is said better by us."""
    logger = logging.getLogger("torch.distributed.elastic")
    silent, before = logging.NullHandler(), logger.propagate
    logger.addHandler(silent)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(silent)
        logger.propagate = before


def raise_failure(outcome: Outcome) -> None:
    """The first failure as an exception, for a launch from a notebook or from a program."""
    if outcome.failure is not None:
        said = outcome.failure.text or outcome.failure.tail
        raise RankwiseError(outcome.summary(), said.replace("\n", "\n  "), outcome.logs().strip())
