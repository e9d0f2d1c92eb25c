"""The ranks' sums put together: each rank adds up one slice of all elements, and gives the result to the others.

Each element travels twice, as in a ring all-reduce: to the rank that adds it up, and from there to all. On the way back
it is a float; on the way there an integer of 8 bytes, or the float of the one shard that a rank had. So the ranks send
as many bytes as in an all-reduce of the floats where they have one shard each, and one and a half times as many where
they have more (float32).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rankwise.group import Group
from rankwise.orderfree.cargo import Cargo, Segment


def put_together(cargo: Cargo, like: Sequence[torch.Tensor], group: Group) -> list[torch.Tensor | None]:
    """The sums over the ranks, of the shapes of `like`; None where no rank has any. Every rank calls it."""
    sums: list[torch.Tensor | None] = [None] * len(like)
    indices = [index for index in range(len(like)) if cargo.has(index)]
    if indices:
        for index, total in zip(indices, _totals(cargo, indices, like, group), strict=True):
            sums[index] = total
    return sums


def _totals(cargo: Cargo, indices: list[int], like: Sequence[torch.Tensor], group: Group) -> list[torch.Tensor]:
    sizes = [like[index].numel() for index in indices]
    length = -(-sum(sizes) // group.size)   # of a rank's slice
    slices = [_segments(indices, sizes, rank * length, (rank + 1) * length) for rank in range(group.size)]
    parts = [part for segments in slices for segment in segments for part in cargo.sent(segment)]
    received = group.swap(torch.cat(parts) if parts else like[indices[0]].new_zeros(0),
                          [sum(map(cargo.length, segments)) for segments in slices])
    own = slices[group.rank]
    arrived = torch.split(received, [cargo.length(segment) for segment in own], dim=1) if own else ()
    totals = [cargo.total(segment, numbers) for segment, numbers in zip(own, arrived, strict=True)]
    padding = like[indices[0]].new_zeros(length - sum(segment.size for segment in own))
    whole = group.gather(torch.cat([*totals, padding])).view(-1)
    return [part.view(like[index].shape)
            for index, part in zip(indices, torch.split(whole[:sum(sizes)], sizes), strict=True)]


def _segments(indices: Sequence[int], sizes: Sequence[int], start: int, stop: int) -> list[Segment]:
    """Elements `start` to `stop` of the tensors laid end to end, tensor by tensor."""
    segments, begin = [], 0
    for index, size in zip(indices, sizes, strict=True):
        first, last = max(start - begin, 0), min(stop - begin, size)
        if first < last:
            segments.append(Segment(index, first, last))
        begin += size
    return segments
