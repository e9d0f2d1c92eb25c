"""The ranks' sums put together: each rank adds up one slice of all elements, and gives the result to the others.

Each element travels twice, as in a ring all-reduce: to the rank that adds it up, and from there to all. On the way back
it is a float; on the way there an integer of 8 bytes, or the float of the one shard that a rank had. So the ranks send
as many bytes as in an all-reduce of the floats where they have one shard each, and one and a half times as many where
they have more (float32).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from rankwise.group import Group
from rankwise.orderfree.cargo import Cargo, Segment

_ELEMENTS_AT_ONCE = 1 << 20   # bounds what is in memory on its way


def put_together(cargo: Cargo, like: Sequence[torch.Tensor], group: Group) -> list[torch.Tensor | None]:
    """The sums over the ranks, of the shapes of `like`; None where no rank has any. Every rank calls it."""
    sums: list[torch.Tensor | None] = [None] * len(like)
    indices = [index for index in range(len(like)) if cargo.has(index)]
    if not indices:
        return sums
    sizes = [like[index].numel() for index in indices]
    whole = like[indices[0]].new_empty(sum(sizes))
    for start in range(0, len(whole), _ELEMENTS_AT_ONCE):
        window = whole[start:start + _ELEMENTS_AT_ONCE]
        length = -(-len(window) // group.size)   # of a rank's slice
        edges = [start + min(rank * length, len(window)) for rank in range(group.size + 1)]
        slices = [_segments(indices, sizes, *ends) for ends in pairwise(edges)]
        window.copy_(group.gather(_slice(cargo, slices, length, whole, group)).view(-1)[:len(window)])
    for index, part in zip(indices, torch.split(whole, sizes), strict=True):
        sums[index] = part.view(like[index].shape)
    return sums


def _slice(cargo: Cargo, slices: Sequence[Sequence[Segment]], length: int, like: torch.Tensor,
           group: Group) -> torch.Tensor:
    """Give each rank what this one has of its slice, and add up this rank's own: [length], of the dtype of `like`."""
    parts = [part for segments in slices for segment in segments for part in cargo.sent(segment)]
    received = group.swap(torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=like.device),
                          [sum(map(cargo.length, segments)) for segments in slices])
    own = slices[group.rank]
    arrived = torch.split(received, [cargo.length(segment) for segment in own], dim=1) if own else ()
    totals = [cargo.total(segment, numbers) for segment, numbers in zip(own, arrived, strict=True)]
    return torch.cat([*totals, like.new_zeros(length - sum(segment.size for segment in own))])


def _segments(indices: Sequence[int], sizes: Sequence[int], start: int, stop: int) -> list[Segment]:
    """Elements `start` to `stop` of the tensors laid end to end, tensor by tensor."""
    segments, begin = [], 0
    for index, size in zip(indices, sizes, strict=True):
        first, last = max(start - begin, 0), min(stop - begin, size)
        if first < last:
            segments.append(Segment(index, first, last))
        begin += size
    return segments
