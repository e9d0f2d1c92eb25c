"""A line of this rank to the launcher's store, apart from the training's own: for what must get through meanwhile.

The client of a store serves one caller at a time, and the training's may wait in it for minutes. This one is for the
threads beside the training.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from rankwise import environment
from rankwise.world import World

_PREFIX = "rankwise/side"


class SideChannel:
    """Short texts under names, seen by all ranks of this attempt.

    Every method raises ConnectionError where the store is gone.
    """

    def __init__(self, store: dist.Store, world: World) -> None:
        self.rank, self.size = world.rank, world.size
        self._store = store

    @classmethod
    def open(cls, world: World, *, limit_seconds: float, attempt: int | None = None) -> SideChannel | None:
        """A connection to the store that the environment names, for this attempt's ranks unless another one is given.

        None for a rank that is alone. Raises ConnectionError where the store is not there within the limit.
        """
        address = environment.store_address()
        if world.size == 1 or address is None:
            return None
        host, port = address
        try:
            store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=limit_seconds),
                                  wait_for_workers=False)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error
        return cls.over(store, environment.attempt() if attempt is None else attempt, world)

    @classmethod
    def over(cls, store: dist.Store, attempt: int, world: World) -> SideChannel:
        """The line of an attempt's ranks over a store that is open."""
        return cls(dist.PrefixStore(f"{_PREFIX}/{attempt}", store), world)

    @classmethod
    def in_memory(cls) -> SideChannel:
        """The line of a rank that is alone, to itself."""
        return cls.over(dist.HashStore(), 0, World())

    def post(self, name: str, text: str) -> None:
        """Put a text where every rank can read it from now on, in the place of an earlier one."""
        try:
            self._store.set(name, text)
            self._store.check([name])   # a store does not answer a set: one answered question later it has been heard
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def read(self, name: str) -> str | None:
        """The text of this name; None where nobody has posted it. Never waits for somebody to do so."""
        try:
            return self._store.get(name).decode() if self._store.check([name]) else None
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def claim(self, name: str, text: str) -> str:
        """Post a text unless another rank was first; returns the text that stands, the same on every rank."""
        try:
            return self._store.compare_set(name, "", text).decode()
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error
