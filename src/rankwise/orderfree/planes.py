"""The sum of some tensors as integers, a plane of them for each level that one of the tensors is on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from rankwise.orderfree.fixedpoint import Grids, oddities, with_oddities

_ELEMENTS_AT_ONCE = 1 << 20   # bounds what a conversion takes in memory
ODD = 1 << 20   # the level of the plane that counts infinities and NaN


class Term(NamedTuple):
    """A tensor to be added, or a part of one."""

    values: torch.Tensor
    magnitude: float
    """The largest finite one of the whole tensor."""
    is_odd: bool
    """Whether something in the whole tensor is not finite."""

    @classmethod
    def of(cls, values: torch.Tensor, largest: float) -> Term:
        """`largest` is the largest magnitude, or not finite."""
        if math.isfinite(largest):
            return cls(values, largest, is_odd=False)
        return cls(values, float(_finite(values).abs().max()), is_odd=True)


class Planes(dict[int, list[torch.Tensor]]):
    """By level: the sum of the integers, a 1-dim tensor for each word."""

    def __init__(self, grids: Grids) -> None:
        super().__init__()
        self._grids = grids

    def add(self, term: Term) -> None:
        """Round a tensor to its grid, and add it there."""
        values = term.values.reshape(-1)
        if term.is_odd:
            self._accumulate(ODD, 0, len(values), [oddities(values)])
            values = _finite(values)
        if term.magnitude > 0:
            level = self._grids.level_of(term.magnitude)
            for start in range(0, len(values), _ELEMENTS_AT_ONCE):
                part = values[start:start + _ELEMENTS_AT_ONCE]
                self._accumulate(level, start, len(values), self._grids.integers(part, level))

    def _accumulate(self, level: int, start: int, length: int, words: Sequence[torch.Tensor]) -> None:
        """Add integers, from element `start` on of planes of this length."""
        if level not in self and len(words[0]) == length:
            self[level] = list(words)
            return
        if level not in self:
            self[level] = [word.new_zeros(length) for word in words]
        for plane, word in zip(self[level], words, strict=True):
            plane[start:start + len(word)].add_(word)

    def value(self, like: torch.Tensor) -> torch.Tensor:
        """The sum, of the dtype of `like`: in float64 from the finest level to the coarsest, then rounded once."""
        parts = [self._grids.values(self[level], level) for level in sorted(self.keys() - {ODD})]
        total = parts[0] if parts else torch.zeros(like.numel(), dtype=torch.float64, device=like.device)
        for part in parts[1:]:
            total += part
        if ODD in self:
            total = with_oddities(total, self[ODD][0])
        return total.to(like.dtype)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values.isfinite(), values, 0.0)
