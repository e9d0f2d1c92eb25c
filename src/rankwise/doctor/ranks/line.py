"""A rank's line to the others beside their collectives: in which step it is, its report, and when all is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rankwise import environment
from rankwise.doctor.ranks.report import Report
from rankwise.launcher.farstore import FarStore
from rankwise.world import World

_PREFIX = "rankwise/doctor"
_ANSWER_SECONDS = 8.0
_CONNECT_SECONDS = 30.0   # to a store that is there; on a busy machine that takes a while


class Line:
    """For one thread of a rank. Every method raises ConnectionError where the store is gone."""

    def __init__(self, world: World, store: Any) -> None:
        self.world = world
        self._store = FarStore(store, limit_seconds=_ANSWER_SECONDS)

    def at(self, step: str) -> None:
        """This rank is in this step now."""
        self._store.post(f"{self.world.rank}/at", step)

    def step_of(self, rank: int) -> str | None:
        """The step that a rank is in; None where it has not been heard of."""
        return self._store.read(f"{rank}/at")

    def post(self, name: str, text: str) -> None:
        """Put a text under a name of the caller's own."""
        self._store.post(f"own/{name}", text)

    def read(self, name: str) -> str | None:
        """The text of this name; None where nobody has posted it."""
        return self._store.read(f"own/{name}")

    def report(self, report: Report) -> None:
        """What this rank found."""
        self._store.post(f"{self.world.rank}/report", report.to_json())

    def keep(self, report: Report) -> None:
        """What this rank has found so far: all that is left of it if it does not come through."""
        self._store.post(f"{self.world.rank}/so-far", report.to_json())

    def so_far(self, rank: int) -> Report | None:
        """What a rank has found up to its last step; None where it has begun none."""
        text = self._store.read(f"{rank}/so-far")
        return None if text is None else Report.from_json(text)

    def report_of(self, rank: int) -> Report | None:
        """What a rank found; None where it has not said it."""
        text = self._store.read(f"{rank}/report")
        return None if text is None else Report.from_json(text)

    def end(self, exit_code: int) -> None:
        """All is over, and every rank ends with this exit code."""
        self._store.post("over", str(exit_code))

    def exit_code(self) -> int | None:
        """The exit code to end with; None while it is not over."""
        text = self._store.read("over")
        return None if text is None else int(text)


def serve(world: World) -> dist.Store | None:
    """The store, on rank 0, where no launcher keeps one (srun does not); it lives as long as what is returned."""
    address = environment.store_address()
    if world.rank > 0 or environment.store_is_served() or address is None:
        return None
    return dist.TCPStore(address[0], address[1], is_master=True, timeout=timedelta(seconds=_CONNECT_SECONDS),
                         wait_for_workers=False)


def connect() -> dist.Store:
    """A connection of its own to the store that the environment names, for this examination.

    Raises ConnectionError where it is not there.
    """
    address = environment.store_address()
    if address is None:
        raise ConnectionError("MASTER_ADDR and MASTER_PORT do not say where the ranks meet")
    try:
        store = dist.TCPStore(address[0], address[1], is_master=False, timeout=timedelta(seconds=_CONNECT_SECONDS),
                              wait_for_workers=False)
    except RuntimeError as error:
        raise ConnectionError(str(error).strip().splitlines()[0][:300]) from error
    return dist.PrefixStore(f"{_PREFIX}/{environment.attempt()}", store)
