"""What a rank reads in a pass over an indexed data set: for each turn of the loop body, which samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankwise.data.order import Indices, Keys, Order
from rankwise.data.partition import Part
from rankwise.keys import mix_array
from rankwise.microbatch import MicroBatch

_ROWS_AT_ONCE = 4096


class Turn(NamedTuple):
    """One turn of the loop body on one rank.

    `indices` and `keys` (the samples' randomness) have `share.rows` entries, or, where that is 0, one: a stand-in that
    gives an empty micro-batch its shape.
    """

    batch: int
    start: int
    indices: Indices
    keys: Keys
    share: MicroBatch


class EvenBatches(Sequence[tuple[int, int]]):
    """Global batches of `size` positions of 0 .. n-1 each, the last one with what is left."""

    def __init__(self, n: int, size: int, drop_last: bool) -> None:
        self._n, self._size, self._count = n, size, n // size if drop_last else -(-n // size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, batch: int) -> tuple[int, int]:  # type: ignore[override]
        return batch * self._size, min((batch + 1) * self._size, self._n)


def turns(batches: Sequence[tuple[int, int]], order: Order, key: int, parts_of: Callable[[int], tuple[Part, ...]], *,
          first: int, key_by_position: bool = False) -> Iterator[Turn]:
    """The turns of a pass from global batch `first` on.

    `batches` has each global batch's first and last position (exclusive), `parts_of(rows)` a rank's part of it. The key
    of a sample comes from `key` and its index; and from its position too, where a sample can come twice in a pass.
    """
    for group in _groups(batches, parts_of, first):
        positions = np.concatenate([_positions(start, part) for _, start, part in group])
        indices = order.at(positions)
        keys = mix_array(key, indices.astype(np.uint64))
        if key_by_position:
            keys = mix_array(key, keys ^ mix_array(key, positions.astype(np.uint64)))
        begin = 0
        for batch, start, part in group:
            end = begin + max(1, part.share.rows)
            yield Turn(batch, start + part.start, indices[begin:end], keys[begin:end], part.share)
            begin = end


def _groups(batches: Sequence[tuple[int, int]], parts_of: Callable[[int], tuple[Part, ...]],
            first: int) -> Iterator[list[tuple[int, int, Part]]]:
    """Some turns at a time, because one array operation costs the same for ten samples as for a thousand."""
    group: list[tuple[int, int, Part]] = []
    rows = 0
    for batch in range(first, len(batches)):
        start, stop = batches[batch]
        for part in parts_of(stop - start):
            group.append((batch, start, part))
            rows += part.share.rows
        if rows >= _ROWS_AT_ONCE or len(group) >= _ROWS_AT_ONCE:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _positions(start: int, part: Part) -> Indices:
    """Positions of a part of the global batch that begins at `start`; its first one stands in for none."""
    if part.share.rows == 0:
        return np.array([start], dtype=np.int64)
    return np.arange(start + part.start, start + part.stop, dtype=np.int64)
