"""The sum of some tensors as integers, a plane of them for each level that one of the tensors is on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from rankwise.orderfree.fixedpoint import Grids, oddities, with_oddities

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
    """By level: the sum of the integers, one tensor for each word."""

    def __init__(self, grids: Grids) -> None:
        super().__init__()
        self._grids = grids

    def add(self, term: Term) -> None:
        """Round a tensor to its grid, and add it there."""
        values = term.values
        if term.is_odd:
            self._accumulate(ODD, [oddities(values)])
            values = _finite(values)
        if term.magnitude > 0:
            level = self._grids.level_of(term.magnitude)
            self._accumulate(level, self._grids.integers(values, level))

    def _accumulate(self, level: int, integers: Sequence[torch.Tensor]) -> None:
        if level not in self:
            self[level] = list(integers)
            return
        for whole, more in zip(self[level], integers, strict=True):
            whole.add_(more)

    def value(self, like: torch.Tensor) -> torch.Tensor:
        """The sum, of the dtype of `like`: in float64 from the finest level to the coarsest, then rounded once."""
        total = torch.zeros(_shape(self.values()) or like.shape, dtype=torch.float64, device=like.device)
        for level in sorted(self.keys() - {ODD}):
            total += self._grids.values(self[level], level)
        if ODD in self:
            total = with_oddities(total, self[ODD][0])
        return total.to(like.dtype)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values.isfinite(), values, 0.0)


def _shape(planes: Iterable[list[torch.Tensor]]) -> torch.Size | None:
    return next((words[0].shape for words in planes), None)
