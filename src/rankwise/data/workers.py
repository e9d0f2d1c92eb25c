"""Reading in worker processes: requests go out ahead, replies come back in order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from rankwise.data.samples import kept_randomness
from rankwise.errors import DataError
from rankwise.lifetime import end_with_parent

Request = TypeVar("Request")


class Workers(Generic[Request]):
    """Calls `read(request)` in worker processes that stay alive between passes; with 0 of them, in this process.

    torch's DataLoader does the work: what it takes for the index of a sample is a request here.
    """

    def __init__(self, read: Callable[[Request], Any], count: int, *, pin: bool, timeout_seconds: float,
                 rank: int) -> None:
        self.count = count
        self._read, self._pin, self._timeout_seconds, self._rank = read, pin, timeout_seconds, rank
        self._requests: _Requests[Request] = _Requests()
        self._loader: DataLoader[Any] | None = None
        self._iterator: Any = None

    def replies(self, requests: Iterator[Request]) -> Iterator[tuple[Request, Any]]:
        """Each request with its reply. Left early, what was asked ahead is dropped at the next call."""
        if self.count == 0:
            for request in requests:
                with kept_randomness():
                    reply = self._read(request)
                yield request, reply
            return
        self._requests.start(requests)
        self._iterator = iter(self._start() if self._loader is None else self._loader)
        try:
            for reply in self._iterator:
                yield self._requests.answered(), reply
            return
        except Exception as error:
            self._stop()
            failure = str(error).strip()
            if not _is_of_transport(error, failure):
                raise
        raise DataError(f"Rank {self._rank} got no batch from its {self.count} data worker processes.", failure,
                        "A worker that was killed often ran out of memory, or of shared memory (/dev/shm); one that "
                        "timed out waits for a file or a lock. Try num_workers=0.")

    def _start(self) -> DataLoader[Any]:
        self._loader = DataLoader(
            _Answers(self._read), batch_sampler=self._requests, num_workers=self.count, collate_fn=_unchanged,
            pin_memory=self._pin, timeout=self._timeout_seconds, persistent_workers=True,
            worker_init_fn=_ending_with_this_process(),
            generator=torch.Generator())   # the default one belongs to the training
        return self._loader

    def _stop(self) -> None:
        """End the workers now. Left to the garbage collector they would outlive the error, which holds on to them, and
        after the death of one torch raises again whenever a child process of any kind ends."""
        stop = getattr(self._iterator, "_shutdown_workers", None)
        if stop is not None:
            with contextlib.suppress(RuntimeError):   # that it was killed, once more
                stop()
        self._loader = self._iterator = None


class _Requests(Generic[Request]):
    """The requests of a pass, in the role of a batch sampler; remembers what was sent until it is answered."""

    def __init__(self) -> None:
        self._coming: Iterator[Request] = iter(())
        self._sent: deque[Request] = deque()

    def start(self, requests: Iterator[Request]) -> None:
        self._coming, self._sent = requests, deque()

    def __iter__(self) -> Iterator[Any]:
        for request in self._coming:
            self._sent.append(request)
            yield request

    def answered(self) -> Request:
        return self._sent.popleft()


class _Answers(Dataset[Any], Generic[Request]):
    """The reading function, in the role of a data set that is asked for several samples at once."""

    def __init__(self, read: Callable[[Request], Any]) -> None:
        self._read = read

    def __getitems__(self, request: Request) -> Any:
        return self._read(request)


def _ending_with_this_process() -> Callable[[int], None] | None:
    """For a worker that is forked from here: torch's own looks for its parent, but not while it reads a sample."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork" or threading.current_thread() is not threading.main_thread():
        return None
    parent = os.getpid()
    return lambda number: end_with_parent(parent)


def _is_of_transport(error: Exception, text: str) -> bool:
    """Whether a worker is gone or late, unlike an error that was raised in it (whose text says where it was caught)."""
    lost = isinstance(error, (OSError, EOFError)) and not text.startswith("Caught ")
    return lost or (isinstance(error, RuntimeError) and text.startswith("DataLoader "))


def _unchanged(reply: Any) -> Any:
    return reply
