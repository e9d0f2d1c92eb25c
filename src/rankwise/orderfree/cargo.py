"""What a rank sends of its sums, and how the rank that receives it from all adds it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rankwise.group import Group
from rankwise.orderfree.fixedpoint import Grids, words_of
from rankwise.orderfree.planes import ODD, Planes, Term

_NONE = -(1 << 30)


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements `start` to `stop` of tensor number `index`."""

    index: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1)[self.start:self.stop]


class Cargo(Protocol):
    """The tensors of one sum, on their way."""

    def has(self, index: int) -> bool:
        """Whether any rank has something of this tensor; every rank answers alike."""
        ...

    def is_odd(self, index: int) -> bool:
        """Whether any rank has something of this tensor that is not finite."""
        ...

    def length(self, segment: Segment) -> int:
        """Numbers that a rank sends of a segment, the same on every rank."""
        ...

    def sent(self, segment: Segment) -> list[torch.Tensor]:
        """What this rank sends of it, 1-dim tensors of one dtype."""
        ...

    def total(self, segment: Segment, received: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks; `received` is [ranks, length]. Of the tensor's dtype, [segment.size]."""
        ...


class Integers:
    """Sums of several shards: planes of integers. The ranks agree first on which levels there are."""

    def __init__(self, planes: Sequence[Planes | None], like: Sequence[torch.Tensor], grids: Grids,
                 group: Group) -> None:
        self._planes, self._like, self._grids = planes, like, grids
        self._levels = _all_levels(planes, group)

    def has(self, index: int) -> bool:
        return self._levels[index] is not None

    def is_odd(self, index: int) -> bool:
        return ODD in (self._levels[index] or ())

    def length(self, segment: Segment) -> int:
        return sum(self._words(segment.index, level) for level in self._levels[segment.index] or ()) * segment.size

    def _words(self, index: int, level: int) -> int:
        return 1 if level == ODD else words_of(self._like[index].dtype)

    def sent(self, segment: Segment) -> list[torch.Tensor]:
        planes = self._planes[segment.index] or Planes(self._grids)
        nothing = torch.zeros(segment.size, dtype=torch.int64, device=self._like[segment.index].device)
        return [part for level in self._levels[segment.index] or ()
                for part in (map(segment.of, planes[level]) if level in planes
                             else [nothing] * self._words(segment.index, level))]

    def total(self, segment: Segment, received: torch.Tensor) -> torch.Tensor:
        words = iter(torch.split(received.sum(0) if len(received) > 1 else received[0], segment.size))
        whole = Planes(self._grids)
        for level in self._levels[segment.index] or ():
            whole[level] = [next(words) for _ in range(self._words(segment.index, level))]
        return whole.value(segment.of(self._like[segment.index]))


class Floats:
    """At most one shard a rank: its tensors as they are. The ranks tell each other which grid each of them is for."""

    def __init__(self, terms: Sequence[Term | None], like: Sequence[torch.Tensor], grids: Grids, group: Group) -> None:
        self._terms, self._like, self._grids = terms, like, grids
        own = [(-1.0, 0.0) if term is None else (term.magnitude, float(term.is_odd)) for term in terms]
        self._kinds = group.gather(torch.tensor(own, dtype=torch.float64, device=group.device)).tolist()

    def has(self, index: int) -> bool:
        return any(rank[index][0] >= 0 for rank in self._kinds)

    def is_odd(self, index: int) -> bool:
        return any(rank[index][1] > 0 for rank in self._kinds)

    def length(self, segment: Segment) -> int:
        return segment.size

    def sent(self, segment: Segment) -> list[torch.Tensor]:
        term = self._terms[segment.index]
        return [segment.of(self._like[segment.index].new_zeros(()).expand(segment.stop) if term is None
                           else term.values)]

    def total(self, segment: Segment, received: torch.Tensor) -> torch.Tensor:
        whole = Planes(self._grids)
        for (magnitude, is_odd), values in zip((rank[segment.index] for rank in self._kinds), received, strict=True):
            if magnitude >= 0:
                whole.add(Term(values, magnitude, bool(is_odd)))
        return whole.value(segment.of(self._like[segment.index]))


def _all_levels(planes: Sequence[Planes | None], group: Group) -> list[list[int] | None]:
    """For each tensor the levels that may be on some rank, from the finest to the coarsest: one, as a rule."""
    table = []
    for own in planes:
        levels = [] if own is None else sorted(own.keys() - {ODD})
        table.append([own is not None, own is not None and ODD in own,
                      *((levels[-1], -levels[0]) if levels else (_NONE, _NONE))])
    agreed = group.max(torch.tensor(table, dtype=torch.int32, device=group.device)).tolist()
    return [[*(range(-negative_bottom, top + 1) if top > _NONE else ()), *([ODD] if is_odd else ())]
            if is_there else None for is_there, is_odd, top, negative_bottom in agreed]
