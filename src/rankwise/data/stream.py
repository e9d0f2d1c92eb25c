"""Reading a stream: global batches of data that has no index, and perhaps no end.

All ranks exchange how many rows each has for a global batch, one batch ahead of the loop body: they end
together whatever their streams do, and the loop body does not wait for the exchange.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch

from rankwise.data.collation import Collate, collate_nothing
from rankwise.data.plan import Turn
from rankwise.data.samples import kept_randomness
from rankwise.data.sampling import UnknownLengthError
from rankwise.data.stream_reader import Reply, Request, Sharded, Whole
from rankwise.data.workers import Workers
from rankwise.errors import DataError
from rankwise.group import Group
from rankwise.keys import mix, mix_array


class _Told(NamedTuple):
    """What the ranks told each other of one global batch, in order of rank."""

    rows: list[int]
    fingerprints: list[int]
    have_sample: list[int]


class Stream:
    """The turns of a pass over a stream, each with its batch in this process's memory."""

    samples = None

    def __init__(self, reading: Whole | Sharded, workers: Workers[Request], collate: Collate, *, group: Group,
                 seed: int, drop_last: bool, length: int | None) -> None:
        self._reading, self._workers, self._collate, self._group = reading, workers, collate, group
        self._seed, self._drop_last, self._length = seed, drop_last, length
        self._sample: list[Any] = []   # the first one of a pass, once seen

    def __len__(self) -> int:
        if self._length is None:
            raise UnknownLengthError("len(loader) was asked of a stream.", "Its end is known when it is reached.",
                                     "Give the data set a __len__ (its number of samples), or count the batches.")
        size = self._reading.batch_size
        return self._length // size if self._drop_last else -(-self._length // size)

    def turns(self, pass_number: int, first: int) -> Iterator[tuple[Turn, Any]]:
        """From global batch `first` on."""
        silent = 0   # global batches in a row without a row: when each worker has had one, all streams have ended
        for batch, reply, told in self._agreed(pass_number, first):
            rows = self._global_rows(batch, told)
            silent = 0 if rows else silent + 1
            if rows and not (self._drop_last and rows < self._reading.batch_size):
                yield from self._turns_of(batch, reply, told.rows, mix(self._seed, pass_number))
            if silent == max(1, self._workers.count):
                if batch + 1 == silent:
                    raise DataError("The stream gave no samples on any rank.", "It has ended before its first one.",
                                    "See where the data set looks for its files.")
                return

    def _agreed(self, pass_number: int, first: int) -> Iterator[tuple[int, Reply, _Told]]:
        """Each global batch with what all ranks told of it, while the exchange about the next one is under way."""
        earlier = None
        for request, reply in self._workers.replies(_requests(pass_number, first, self._workers.count)):
            if reply is None:
                continue
            if reply.sample:
                self._sample = reply.sample
            exchange = self._group.sum_later(self._telling(reply))
            if earlier is not None:
                yield earlier[0], earlier[1], _Told(*earlier[2].wait().tolist())
            earlier = request.batch, reply, exchange

    def _telling(self, reply: Reply) -> torch.Tensor:
        table = torch.zeros(3, self._group.size, dtype=torch.int64)
        table[:, self._group.rank] = torch.tensor([reply.rows, reply.fingerprint, len(self._sample)])
        return table.to(self._group.device)

    def _global_rows(self, batch: int, told: _Told) -> int:
        if isinstance(self._reading, Sharded):
            if sum(told.rows) and not all(told.have_sample):
                self._share_sample(told)
            return sum(told.rows)
        if len(set(zip(told.rows, told.fingerprints, strict=True))) > 1:
            seen = "; ".join(f"rank {rank} had {rows} rows" for rank, rows in enumerate(told.rows))
            raise DataError(f"The ranks read different samples from their streams, in global batch {batch}.",
                            f"Every rank must read the same whole stream, of which it keeps its slice ({seen}).",
                            "If the stream gives each rank its own part, give sharded=True; if it shuffles with a "
                            "generator of its own, seed that equally on all ranks.")
        return told.rows[0]

    def _share_sample(self, told: _Told) -> None:
        """A rank whose stream is empty gets a sample of another, for the shape of its empty micro-batches."""
        sample = self._group.broadcast_object(self._sample, source=told.have_sample.index(1))
        self._sample = self._sample or sample

    def _turns_of(self, batch: int, reply: Reply, rows: list[int], key: int) -> Iterator[tuple[Turn, Any]]:
        begin = batch * self._reading.batch_size
        for part, micro_batch in zip(self._reading.parts(rows), reply.micro_batches, strict=True):
            start = begin + part.start
            positions = np.arange(start, start + max(1, part.share.rows), dtype=np.int64)
            turn = Turn(batch, start, positions, mix_array(key, positions.astype(np.uint64)), part.share)
            yield turn, self._nothing() if micro_batch is None else micro_batch

    def _nothing(self) -> Any:
        with kept_randomness():
            return collate_nothing(self._collate, lambda: copy.deepcopy(self._sample[0]))


def _requests(pass_number: int, first: int, workers: int) -> Iterator[Request]:
    """Global batches without end; from one that is the first worker's, so that each worker keeps its own ones."""
    for batch in count(first - first % max(1, workers)):
        yield Request(pass_number, batch, wanted=batch >= first)
