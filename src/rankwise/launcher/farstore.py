"""A store that lies on another machine: its answers are waited for no longer than a limit.

The kernel waits a quarter of an hour for a machine that was cut off, and torch's client of a store waits with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch.distributed as dist

T = TypeVar("T")


class FarStore:
    """Texts under names, for one caller. Every method raises ConnectionError where no answer comes in time.

    After that the connection is given up.
    """

    def __init__(self, store: dist.TCPStore, *, limit_seconds: float) -> None:
        self._store: Any = store   # torch's annotations lack some of its methods
        self._limit_seconds = limit_seconds
        self._is_lost = False

    def post(self, name: str, text: str) -> None:
        """Put a text where every machine can read it."""
        self._ask(lambda: self._store.set(name, text))

    def add(self, name: str, text: str) -> None:
        """Put a text behind what other machines have put there."""
        self._ask(lambda: self._store.append(name, text))

    def read(self, name: str) -> str | None:
        """The text of this name; None where nobody has posted it."""
        return self._ask(lambda: self._store.get(name).decode() if self._store.check([name]) else None)

    def _ask(self, question: Callable[[], T]) -> T:
        answer = _Answer[T]()

        def ask() -> None:
            try:
                answer.values.append(question())
            except RuntimeError as error:
                answer.problem = str(error)

        asking = threading.Thread(target=ask, name="rankwise-store", daemon=True)
        if not self._is_lost:
            asking.start()
            asking.join(self._limit_seconds)
        if not answer.values:
            self._is_lost = True
            raise ConnectionError(answer.problem or f"no answer within {self._limit_seconds:.0f} s")
        return answer.values[0]


class _Answer(Generic[T]):
    """What came back."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.problem = ""
