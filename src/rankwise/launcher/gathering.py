"""The machines of a run gather in rounds: at its start, after a failure, and when another machine has come.

Machine 0 keeps the store in which they meet, and closes a round when all machines are there, or (with --nodes MIN:MAX)
enough of them and a last call is over. Machines of the round before go first. A machine that comes later, or that is
one too many, waits for the next round. The store, at the endpoint, holds these names:

    folder             name of the run's folder, which machine 0 chose
    settings           what machine 0 was given of the settings that a run has once: another run's machines differ in it
    round              number of the round that can be joined, and `now` or `later`: whether machine 0 gathers for it
    N/here             numbers of the machines that are there in round N, as they came
    N/closed           the machines of round N, and the port of the store of its ranks
    left               numbers of the machines that have failed and do not come again
    over               the run has ended: why, or nothing where it ended well
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, NoReturn

import torch.distributed as dist

from rankwise.errors import PeerError
from rankwise.launcher.farstore import FarStore
from rankwise.settings import Settings, option
from rankwise.world import listed

_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 8.0      # for an answer of machine 0
_LAST_CALL_SECONDS = 5.0   # for more machines, when there are enough
_LOOK_SECONDS = 1.0        # between two looks for machines that wait
_FAREWELL_SECONDS = 2.0    # for the machines that wait to hear that the run is over
_OF_A_RUN = ("name", "seed", "amp", "exact")   # the same on all machines; a machine need not have the name


class Round(NamedTuple):
    """Who takes part in a round, by number, in order; and the store that machine 0 opened for its ranks."""

    number: int
    machines: list[int]
    port: int


class Over(Exception):  # noqa: N818 (it is no error)
    """The run ended well, and this machine was not needed."""


class Gathering:
    """The rounds of a run, as one of its machines takes part in them. `host` and `port` are the endpoint."""

    def __init__(self, settings: Settings, host: str, port: int, folder: str) -> None:
        self._settings, self._host, self._port, self._folder = settings, host, port, folder
        self._machine = settings.node_rank
        self._least, self._most = settings.node_range
        self._store: FarStore | None = None
        self._ranks_store: dist.Store | None = None   # machine 0 serves it while the round lasts
        self._round, self._machines = -1, list[int]()
        self._looked_at, self._waiting = 0.0, 0

    def next_round(self) -> Round:
        """Gather with the other machines, within the time limit; a machine that is not needed yet waits longer.

        Raises PeerError where they do not come, or the run has failed; Over where it ended without this machine.
        """
        try:
            store = self._connected()
            return self._close_round(store) if self._machine == 0 else self._join(store)
        except (ConnectionError, dist.DistError, OSError) as error:
            raise self._missed(str(error).strip().splitlines()[0][:300]) from error

    def waiting(self) -> int:
        """Machines for which the next round has to begin: those that left this one, and new ones where it has room."""
        if self._store is not None and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            with contextlib.suppress(ConnectionError):   # with the store machine 0 is lost: the ranks will tell
                there = _numbers(self._store, f"{self._round + 1}/here")
                has_room = len(self._machines) < self._most
                self._waiting = len(there if has_room else there.intersection(self._machines))
        return self._waiting

    def folder(self) -> str:
        """The name of the run's folder, which machine 0 has told before it closed the first round."""
        assert self._store is not None
        return self._store.read("folder") or self._folder

    def leave(self, problem: str) -> None:
        """This machine ends: those that wait for it are told, with the problem where there is one."""
        if self._store is None:
            return
        with contextlib.suppress(ConnectionError):
            if self._machine != 0 and problem:
                self._store.add("left", f"{self._machine} ")
            if self._machine == 0:
                self._store.post("over", problem)
                if _numbers(self._store, f"{self._round + 1}/here") - {0}:
                    time.sleep(_FAREWELL_SECONDS)

    def _connected(self) -> FarStore:
        if self._store is None:
            limit = timedelta(seconds=self._settings.timeout)
            store = dist.TCPStore(self._host, self._port, None, self._machine == 0, limit, wait_for_workers=False,
                                  multi_tenant=True)
            self._store = FarStore(store, limit_seconds=_ANSWER_SECONDS)
        return self._store

    # Machine 0

    def _close_round(self, store: FarStore) -> Round:
        number = self._round + 1
        store.post("folder", self._folder)
        store.post("settings", json.dumps(self._of_the_run()))
        store.post("round", f"{number} now")
        store.add(f"{number}/here", "0 ")
        machines = self._gathered(store, number)
        self._ranks_store = ranks = dist.TCPStore(self._host, 0, None, True, timedelta(seconds=self._settings.timeout),
                                                  wait_for_workers=False)
        closed = Round(number, machines, ranks.port)
        store.post("round", f"{number + 1} later")   # before the others can look for it
        store.post(f"{number}/closed", json.dumps(closed))
        return self._begun(closed)

    def _gathered(self, store: FarStore, number: int) -> list[int]:
        """The machines that are there when the round is to be closed."""
        began, enough_since, former = time.monotonic(), 0.0, set(self._machines)
        while True:
            there, left = _numbers(store, f"{number}/here"), _numbers(store, "left")
            now = time.monotonic()
            if len(there) >= self._least:
                enough_since = enough_since or now
            if (len(there) >= self._most and there >= former - left) or 0 < enough_since < now - _LAST_CALL_SECONDS:
                return sorted(sorted(there, key=lambda machine: (machine not in former, machine))[:self._most])
            if not enough_since and left and now > began + _LAST_CALL_SECONDS:
                self._give_up(f"Machine {listed(sorted(left))} has failed; its output says why.")
            if not enough_since and now > began + self._settings.timeout:
                missing = (former or set(range(self._most))) - there
                self._give_up(f"Of machine {listed(sorted(missing))} nothing was heard.")
            time.sleep(_POLL_SECONDS)

    def _give_up(self, problem: str) -> NoReturn:
        self.leave(problem)
        raise self._missed(problem)

    # The others

    def _join(self, store: FarStore) -> Round:
        is_spare = False
        while True:
            number, call = self._awaited(store, lambda: self._open_round(store), is_patient=is_spare).split()
            if self._round < 0:
                self._require_the_same_run(store)
            store.add(f"{number}/here", f"{self._machine} ")
            if call == "later" and self._round < 0:
                is_spare = self._is_spare()
            said = self._awaited(store, lambda number=number: store.read(f"{number}/closed"),  # type: ignore[misc]
                                 is_patient=is_spare)
            closed = Round(*json.loads(said))
            if self._machine in closed.machines:
                return self._begun(closed)
            is_spare = is_spare or self._is_spare()

    def _of_the_run(self) -> dict[str, object]:
        return {name: getattr(self._settings, name) for name in _OF_A_RUN}

    def _require_the_same_run(self, store: FarStore) -> None:
        """Raise PeerError where machine 0 is that of another run; to that run nothing is said."""
        ours, theirs = self._of_the_run(), json.loads(store.read("settings") or "{}")
        other = [name for name in theirs if theirs[name] != ours[name]
                 and not (name == "name" and None in (ours[name], theirs[name]))]
        if other:
            self._store = None
            raise PeerError(f"Machine {self._machine} was started with {_given(ours, other)}.",
                            f"The run that meets at {self._host}:{self._port} has {_given(theirs, other)}.",
                            "Start the same command on every machine of a run, and give each run an --endpoint of its "
                            "own: two cannot share a port.")

    def _is_spare(self) -> bool:
        print(f"rankwise: the run is under way without this machine, {self._machine}, which waits for its next start.",
              file=sys.stderr, flush=True)
        return True

    def _open_round(self, store: FarStore) -> str | None:
        """The round that can be joined, when it is another than that of which this machine comes."""
        text = store.read("round")
        return text if text is not None and int(text.split()[0]) > self._round else None

    def _awaited(self, store: FarStore, text: Callable[[], str | None], *, is_patient: bool) -> str:
        """Wait for a text from machine 0; a little longer than machine 0 itself waits, so that it can say why."""
        deadline = time.monotonic() + self._settings.timeout + 2 * _LAST_CALL_SECONDS
        while True:
            found = text()
            if found is not None:
                return found
            problem = store.read("over")
            if problem is not None:
                raise self._missed(problem) if problem else Over
            if time.monotonic() > deadline and not is_patient:
                raise self._missed("Machine 0 did not begin.")
            time.sleep(_POLL_SECONDS)

    def _begun(self, closed: Round) -> Round:
        self._round, self._machines = closed.number, closed.machines
        self._waiting, self._looked_at = 0, time.monotonic()
        return closed

    def _missed(self, problem: str) -> PeerError:
        return PeerError(f"Machine {self._machine} did not meet the other {self._most - 1} at "
                         f"{self._host}:{self._port} within {self._settings.timeout:.0f} s.", problem,
                         "Start `rankwise run` on every machine with the same --nodes and --endpoint, each with its "
                         "own --node-rank. The endpoint is an address of machine 0 that the others reach, with a "
                         "free port.")


def _given(settings: dict[str, object], names: list[str]) -> str:
    return " and ".join(f"no {option(name)}" if settings[name] is None else f"{option(name)} {settings[name]}"
                        for name in names)


def _numbers(store: FarStore, name: str) -> set[int]:
    return {int(machine) for machine in (store.read(name) or "").split()}
