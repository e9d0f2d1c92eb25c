"""How a global batch is divided: into slices and micro-batches, or into the virtual shards of exact mode."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from rankwise.errors import UsageError
from rankwise.microbatch import MicroBatch


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
def parts_of(rows: int, *, rank: int, size: int, bound: int | None) -> tuple[Part, ...]:
    """The micro-batches of `rank` in a global batch of `rows` samples: equally many on each of `size` ranks.

    Their number is what the largest slice needs so that none has more than `bound` rows.
    """
    edges = even_slices(rows, size)
    turns = 1 if bound is None else max(1, -(-edges[1] // bound))   # the first slice is the largest
    cuts = even_slices(edges[rank + 1] - edges[rank], turns)
    return tuple(
        Part(edges[rank] + start, edges[rank] + stop,
             MicroBatch(rows=stop - start, global_rows=rows, is_first=turn == 0, is_last=turn == turns - 1))
        for turn, (start, stop) in enumerate(pairwise(cuts)))


@lru_cache(maxsize=1024)
def shards_of(rows: int, *, rank: int, size: int, bound: int | None, shards: int) -> tuple[Part, ...]:
    """The same where a micro-batch is one of `shards` virtual shards, cut without regard to the number of ranks.

    A rank has consecutive shards; one with fewer of them has an empty micro-batch at the end. Raises UsageError where
    a shard has more than `bound` rows.
    """
    edges, owned = even_slices(rows, shards), even_slices(shards, size)
    if bound is not None and edges[1] > bound:
        raise UsageError(f"micro_batch is {bound} with --exact {shards} and a global batch of {rows}.",
                         f"A virtual shard is computed at once, and the largest of {shards} has {edges[1]} samples.",
                         f"Give --exact {-(-rows // bound)}, or a micro_batch of {edges[1]} or more.")
    turns = owned[1]   # the first rank has most
    return tuple(_shard(edges, owned[rank] + turn, owned[rank + 1], is_first=turn == 0, is_last=turn == turns - 1)
                 for turn in range(turns))


def _shard(edges: list[int], shard: int, end: int, *, is_first: bool, is_last: bool) -> Part:
    """One shard of a rank whose shards end before `end`; an empty part past them."""
    start, stop = (edges[shard], edges[shard + 1]) if shard < end else (edges[end], edges[end])
    return Part(start, stop, MicroBatch(rows=stop - start, global_rows=edges[-1], is_first=is_first, is_last=is_last,
                                        shard=shard if shard < end else None))
