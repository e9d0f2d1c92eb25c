"""The steps that each rank takes, in order: it says which one it is in, and keeps what it has found so far."""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rankwise import environment, processor
from rankwise.doctor.ranks import collectives, pairs, speed
from rankwise.doctor.ranks.collectives import Peers
from rankwise.doctor.ranks.line import Line
from rankwise.doctor.ranks.report import FORMING, Report
from rankwise.doctor.ranks.transport import words_of
from rankwise.group import Group, backend_of
from rankwise.quantities import byte_count
from rankwise.world import World, listed

_POLL_SECONDS = 0.1
_JOIN_SECONDS = 30.0   # or the limit, if that is longer: one rank of a machine looks at it before it comes


class _MissingError(Exception):
    """A rank or a machine that the next step needs is not there."""


class Steps:
    """One rank's way through the examination; `report` is what it has found, whether or not it came through."""

    def __init__(self, world: World, device: torch.device, line: Line, tell: Callable[[str], None],
                 connect: Callable[[str], dist.Store], *, limit_seconds: float) -> None:
        self._world, self._device, self._line, self._tell, self._connect = world, device, line, tell, connect
        self._limit_seconds = limit_seconds
        self._step = ""
        self._found: dict[str, Any] = {"software": _software(), "backend": backend_of(device),
                                       "device": _name_of(device), "machine": machine_of(world)}

    def take(self) -> None:
        """All of them; the first problem ends it, and is in the report."""
        problem = ""
        try:
            self._take_all()
        except _MissingError as error:
            problem = str(error)
        except Exception as error:   # whatever it is, it belongs into the report
            problem = words_of(error)
        self._found["problem"] = problem
        self._found["is_through"] = not problem

    def report(self, **more: Any) -> Report:
        """What this rank has to say."""
        return Report(rank=self._world.rank, step=self._step, **self._found, **more)

    def _take_all(self) -> None:
        # Loaded by the first group, and slowly: within a pair's limit there is no time for it.
        importlib.import_module("torch.distributed.nn.functional")
        self._at("meeting the other ranks")
        machines = self._await_all()
        self._at("the same computation on each rank")
        self._found["work_seconds"] = tuple(speed.work(self._device))
        self._found["copy_bytes_per_second"] = speed.memory_copy(self._device)
        if len(set(machines)) > 1:
            self._meet_machines(machines)
        self._at(FORMING)
        group = Group.open(self._world, self._device, store=self._connect("all"), timeout_seconds=self._limit_seconds)
        try:
            self._exchange()
        finally:
            group.close()

    def _exchange(self) -> None:
        peers = Peers(rank=self._world.rank, size=self._world.size, device=self._device)
        for name, run in collectives.COLLECTIVES.items():
            self._at(name)
            tally, wrongs = run(peers)
            self._found.setdefault("tallies", {})[name] = tally
            self._found["wrongs"] = (*self._found.get("wrongs", ()), *wrongs)
        for timing in speed.all_reduces(self._device, lambda size: self._at(f"all-reduces of {byte_count(size)}")):
            self._found["timings"] = (*self._found.get("timings", ()), timing)

    def _meet_machines(self, of_ranks: list[int]) -> None:
        """The first rank of each machine tests the links; the others wait, for longer than that may take."""
        machine, machines = of_ranks[self._world.rank], len(set(of_ranks))
        self._at("pairs of machines")
        if of_ranks.index(machine) == self._world.rank:
            met = pairs.meet_all(machine, machines, self._device, self._line, self._connect,
                                 limit_seconds=self._limit_seconds)
            self._found["pairs"] = tuple(met)
            self._at("pairs of machines")
            self._line.post(f"paired/{machine}", "" if not any(each.problem for each in met) else "broken")
        deadline = time.monotonic() + 3 * self._limit_seconds * machines
        while None in (said := [self._line.read(f"paired/{each}") for each in range(machines)]):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if any(said) or None in said:
            raise _MissingError("Not all machines reach each other: the group of all ranks is not formed.")

    def _await_all(self) -> list[int]:
        """No collective is begun before every rank is there: one that waits in it does not know for whom.

        Returns the machine of each rank.
        """
        ranks = range(self._world.size)
        self._line.post(f"machine/{self._world.rank}", str(self._found["machine"]))
        limit_seconds = max(self._limit_seconds, _JOIN_SECONDS)
        deadline = time.monotonic() + limit_seconds
        while missing := [rank for rank in ranks if self._line.read(f"machine/{rank}") is None]:
            if time.monotonic() > deadline:
                raise _MissingError(f"Rank {listed(missing)} did not come within {limit_seconds:.0f} s.")
            time.sleep(_POLL_SECONDS)
        return [int(self._line.read(f"machine/{rank}") or 0) for rank in ranks]

    def _at(self, step: str) -> None:
        self._step = step
        self._tell(step)
        self._line.at(step)
        self._line.keep(self.report())


def machine_of(world: World) -> int:
    """The number of this rank's machine: its launcher's, or else as if each had the same number of ranks."""
    said = environment.machine()
    return world.rank // world.local_size if said is None else said


def _software() -> dict[str, str]:
    """What must be the same on all ranks."""
    nccl: Any = torch.cuda.nccl   # without annotations
    has_nccl = dist.is_nccl_available() and torch.cuda.is_available()
    return {"Python": platform.python_version(), "torch": torch.__version__, "CUDA": torch.version.cuda or "none",
            "NCCL": ".".join(map(str, nccl.version()[:3])) if has_nccl else "none"}


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor.model()
