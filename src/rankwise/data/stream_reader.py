"""This rank's part of a stream, read in this process or in a worker: samples in order, each with its own randomness."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import _utils, get_worker_info

from rankwise.data.collation import Collate
from rankwise.data.partition import Part, even_slices
from rankwise.data.samples import seed_sample
from rankwise.keys import mix, mix_array
from rankwise.microbatch import MicroBatch
from rankwise.structure import is_container, members

_SKIPPED_AT_ONCE = 4096
_OPENING = -1   # stands for the position of what a stream draws before its first sample


class Request(NamedTuple):
    """One global batch of a pass; with `wanted=False` only its turn among the workers is kept."""

    pass_number: int
    batch: int
    wanted: bool


class Reply(NamedTuple):
    """A rank's part of a global batch: how many rows its stream had, and its micro-batches, None for one without rows.

    `fingerprint` tells whether ranks that read one stream see the same. A pass's first reply has its first `sample`.
    """

    rows: int
    micro_batches: list[Any]
    fingerprint: int
    sample: list[Any]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Every rank and worker reads the whole stream, and keeps its slice of each global batch."""

    batch_size: int
    parts_of: Callable[[int], tuple[Part, ...]]

    def key(self, seed: int, pass_number: int) -> int:
        return mix(seed, pass_number)

    def span(self, batch: int) -> tuple[int, int]:
        """From which sample of the stream on to read for a global batch, and how many."""
        return batch * self.batch_size, self.batch_size

    def cuts(self, rows: int) -> Iterable[tuple[int, int]]:
        """What to keep of `rows` samples read, for each micro-batch."""
        return [(part.start, part.stop) for part in self.parts_of(rows)]

    def parts(self, rows: Sequence[int]) -> tuple[Part, ...]:
        """This rank's micro-batches of the global batch, from the rows that each rank read."""
        return self.parts_of(rows[0])


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """The stream already gives each rank and worker a part of its own, read in the order of rank and worker."""

    batch_size: int
    parts_of: Callable[[int], tuple[Part, ...]]
    rank: int
    size: int

    def key(self, seed: int, pass_number: int) -> int:
        return mix(seed, pass_number, self.rank, _worker()[0])

    def span(self, batch: int) -> tuple[int, int]:
        edges = even_slices(self.batch_size, self.size)
        share = edges[self.rank + 1] - edges[self.rank]
        return batch // _worker()[1] * share, share

    def cuts(self, rows: int) -> Iterable[tuple[int, int]]:
        return pairwise(even_slices(rows, len(self.parts_of(self.batch_size))))

    def parts(self, rows: Sequence[int]) -> tuple[Part, ...]:
        before, total = sum(rows[: self.rank]), sum(rows)
        cuts = list(self.cuts(rows[self.rank]))
        return tuple(
            Part(before + start, before + stop,
                 MicroBatch(rows=stop - start, global_rows=total, is_first=turn == 0, is_last=turn == len(cuts) - 1))
            for turn, (start, stop) in enumerate(cuts))


class StreamReader:
    """Reads one global batch after another; begins anew with another pass, and reads on to a later batch."""

    def __init__(self, dataset: Any, collate: Collate, reading: Whole | Sharded, seed: int) -> None:
        self._dataset, self._collate, self._reading, self._seed = dataset, collate, reading, seed
        self._cursor: _Cursor | None = None
        self._pass_number = -1

    def __call__(self, request: Request) -> Reply | None:
        if not request.wanted:
            return None
        position, count = self._reading.span(request.batch)
        if self._cursor is None or self._pass_number != request.pass_number or self._cursor.position > position:
            self._open(request.pass_number)
        assert self._cursor is not None
        opened = self._cursor.position == 0
        self._cursor.skip(position - self._cursor.position)
        samples = list(self._cursor.take(count))
        micro_batches = [self._collate(samples[start:stop]) if stop > start else None
                         for start, stop in self._reading.cuts(len(samples))]
        whole = isinstance(self._reading, Whole)
        return Reply(len(samples), micro_batches, fingerprint(samples[0]) if samples and whole else 0,
                     samples[:1] if opened else [])

    def _open(self, pass_number: int) -> None:
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(pass_number)
        key = self._reading.key(self._seed, pass_number)
        if isinstance(self._reading, Whole) and get_worker_info() is not None:
            # A stream that asks which worker it is in would give only that worker's part: here it must give all.
            _utils.worker._worker_info = None
        self._cursor, self._pass_number = _Cursor(self._dataset, key), pass_number


class _Cursor:
    """An open stream. Before each sample the generators are seeded from its position, for skipped ones too, because a
    stream may draw ahead (a shuffle buffer)."""

    def __init__(self, dataset: Iterable[Any], key: int) -> None:
        seed_sample(mix(key, _OPENING))
        self._samples, self._key, self.position = iter(dataset), key, 0

    def take(self, count: int) -> Iterator[Any]:
        """The next `count` samples, or fewer where the stream ends."""
        positions = np.arange(self.position, self.position + count, dtype=np.uint64)
        for key in mix_array(self._key, positions).tolist():
            seed_sample(key)
            try:
                sample = next(self._samples)
            except StopIteration:
                return
            self.position += 1
            yield sample

    def skip(self, count: int) -> None:
        while count > 0:
            read = sum(1 for _ in self.take(min(count, _SKIPPED_AT_ONCE)))
            count = count - read if read else 0


def fingerprint(sample: Any, before: int = 0) -> int:
    """A checksum of the numbers and texts in a sample; objects of other kinds count by their type."""
    if is_container(sample):
        for member in members(sample):
            before = fingerprint(member, before)
        return before
    if isinstance(sample, torch.Tensor) and sample.layout == torch.strided:
        data = sample.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(sample, np.ndarray) and sample.dtype != object:
        data = sample.tobytes()
    elif isinstance(sample, (str, bytes, bool, int, float, complex)):
        data = repr(sample).encode()
    else:
        data = type(sample).__name__.encode()
    return zlib.crc32(data, before)


def _worker() -> tuple[int, int]:
    """Which worker this is, and of how many; (0, 1) outside of workers."""
    information = get_worker_info()
    return (0, 1) if information is None else (information.id, information.num_workers)
