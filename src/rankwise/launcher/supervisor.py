"""Keeps watch over the ranks of one machine: until they end, until they are interrupted, and no longer.

torch's elastic agent starts and watches the ranks in a thread; this, the main thread, keeps the signals, so that a
notebook's are as before afterwards, and keeps its own time limits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rankwise.errors import PeerError
from rankwise.launcher.signals import Notice, handled

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 2.0   # for a rank to end by itself after an interrupt; with the rest it stays below 5
_TIDY_SECONDS = 5.0    # the same after another rank has failed; the agent alone waits for 30


def supervise(agent: LocalElasticAgent, *, limit_seconds: float, notice: Notice | None = None,
              meanwhile: Callable[[], None] = lambda: None,
              has_failed: Callable[[int], bool] = lambda local_rank: False) -> RunResult | None:
    """Run the agent to its end. However this is left, no rank is. `meanwhile` is called now and then, and at the end.

    After a rank of which `has_failed` says so has ended, the others get a moment, and are killed. Returns None where
    the ranks were given `notice` and did not end in time.

    Raises KeyboardInterrupt when interrupted, PeerError where the other machines did not end within `limit_seconds`
    after the ranks of this one, and what the agent raises where the machines did not meet.
    """
    outcome: dict[str, Any] = {}
    ended = threading.Event()   # a thread whose `join` was interrupted passes for ended in some versions of Python

    def run() -> None:
        try:
            outcome["result"] = agent.run()
        except BaseException as error:
            outcome["error"] = error
        ended.set()

    notice = notice or Notice()
    try:
        with handled(notice):
            threading.Thread(target=run, name="rankwise-agent", daemon=True).start()
            _wait(ended, agent, limit_seconds, notice, meanwhile, has_failed)
    except BaseException:
        notice.interrupted()
        end_ranks(agent, ended)
        raise
    if not ended.is_set():
        end_ranks(agent, ended)
        return None
    if "error" in outcome:
        raise outcome["error"]
    result: RunResult = outcome["result"]
    if result.is_failed():
        _kill(_processes(_pids(agent)))
    return result


def _wait(ended: threading.Event, agent: LocalElasticAgent, limit_seconds: float, notice: Notice,
          meanwhile: Callable[[], None], has_failed: Callable[[int], bool]) -> None:
    alone_since: float | None = None
    failed_since: float | None = None
    while not ended.is_set() and not notice.is_over:
        ended.wait(_POLL_SECONDS)
        meanwhile()
        ranks = {worker.local_rank: worker.id for worker in agent.get_worker_group().workers
                 if isinstance(worker.id, int)}
        left = {rank: pid for rank, pid in ranks.items() if _is_running(pid)}
        notice.acknowledge()
        notice.pass_on(set(left.values()))
        if notice.is_given and not ranks:   # the machines have not met
            return
        is_failing = bool(left) and any(has_failed(rank) for rank in ranks.keys() - left.keys())
        failed_since = (failed_since or time.monotonic()) if is_failing else None
        if failed_since is not None and time.monotonic() - failed_since > _TIDY_SECONDS:
            _kill(_processes(list(left.values())))
        alone_since = (alone_since or time.monotonic()) if ranks and not left else None
        if alone_since is not None and not ended.is_set() and time.monotonic() - alone_since > limit_seconds:
            raise PeerError("The ranks of this machine ended, and the launchers of the others did not answer "
                            f"within {limit_seconds:.0f} s.", "Their machine or the network between is lost.",
                            "See the output of the launchers on the other machines.")


def end_ranks(agent: LocalElasticAgent, ended: threading.Event) -> None:
    """Interrupt the ranks, and after a moment (at once when interrupted again) kill what is left of them."""
    deadline = time.monotonic() + _GRACE_SECONDS
    known: set[Any] = set()
    told: set[int] = set()
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < deadline:
            pids = _pids(agent)
            known.update(_processes(pids))
            for pid in set(pids) - told:
                _signal_group(pid, signal.SIGINT)
                told.add(pid)
            if ended.is_set() or (pids and not any(_is_running(pid) for pid in pids)):
                break
            time.sleep(0.05)
    _kill(known | _processes(_pids(agent)))
    for pid in _pids(agent):
        _signal_group(pid, signal.SIGKILL)
    ended.wait(_GRACE_SECONDS)   # the agent sees them dead and returns at once, on a busy machine a little later


def _pids(agent: LocalElasticAgent) -> list[int]:
    return [worker.id for worker in agent.get_worker_group().workers if isinstance(worker.id, int)]


def _is_running(pid: int) -> bool:
    import psutil
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _processes(pids: list[int]) -> set[Any]:
    """These ranks and all that they started."""
    import psutil
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found.update([process, *process.children(recursive=True)])
    return found


def _kill(processes: set[Any]) -> None:
    import psutil
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()   # psutil compares the time of creation: a process id used again is left alone


def _signal_group(pid: int, number: int) -> None:
    """To a rank and to what it started and left behind: each rank leads a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
