"""How a global batch is divided: into slices over the ranks, and each slice into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from rankwise.microbatch import MicroBatch

Partition = Callable[[int, int], Sequence[int]]
"""(n, parts) -> parts + 1 boundaries from 0 to n: part p holds what lies between boundaries p and p + 1."""


def even_slices(n: int, parts: int) -> list[int]:
    """Boundaries of consecutive slices whose sizes differ by at most one, the larger ones first."""
    size, larger = divmod(n, parts)
    return [part * size + min(part, larger) for part in range(parts + 1)]


class Part(NamedTuple):
    """A micro-batch by its place in the global batch: rows `start` to `stop`."""

    start: int
    stop: int
    share: MicroBatch


@lru_cache(maxsize=1024)
def parts_of(rows: int, *, rank: int, size: int, bound: int | None, partition: Partition) -> tuple[Part, ...]:
    """The micro-batches of `rank` in a global batch of `rows` samples: equally many on each of `size` ranks.

    Their number is what the largest slice needs so that none has more than `bound` rows.
    """
    edges = partition(rows, size)
    largest = max(stop - start for start, stop in pairwise(edges))
    turns = 1 if bound is None else max(1, -(-largest // bound))
    cuts = even_slices(edges[rank + 1] - edges[rank], turns)
    return tuple(
        Part(edges[rank] + start, edges[rank] + stop,
             MicroBatch(rows=stop - start, global_rows=rows, is_first=turn == 0, is_last=turn == turns - 1))
        for turn, (start, stop) in enumerate(pairwise(cuts)))
