"""Floating-point tensors as integers on a grid, so that sums of them are exact and any order gives the same bits.

A tensor is rounded once, to a grid that depends on nothing but its own largest magnitude: the grids are fixed, 16
binary digits apart, and a tensor takes the finest one that it fits in. No other rank has to be asked for a scale, and
integers of one grid add up without rounding. It is the idea of binned summation (Demmel and Nguyen: Parallel
Reproducible Summation, IEEE Transactions on Computers 64, 2015), with a bin for a tensor in place of a number.

An integer has 62 binary digits less log2 of the number of terms; of these a tensor's largest magnitude uses all but 15
at most. With 8 terms that is 44 digits and more, where float32 has 24. Float64 takes a second integer for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_APART = 16      # binary digits between two grids
_DIGITS = 62     # of an int64, less its sign and one for safety
_NAN, _PLUS, _MINUS = 1 << 42, 1 << 21, 1
MOST_TERMS = _PLUS - 1


class Grids:
    """The grids for sums of up to `terms` tensors. Level n holds magnitudes below 2 ** (16 n)."""

    def __init__(self, terms: int) -> None:
        self._digits = _DIGITS - (terms - 1).bit_length()

    def level_of(self, largest: float) -> int:
        """The finest level for a tensor with this largest magnitude, which is finite and not 0."""
        return -(-math.frexp(largest)[1] // _APART)

    def integers(self, values: torch.Tensor, level: int) -> list[torch.Tensor]:
        """Finite `values` rounded to a level's grid: int64 of the same shape, one tensor, or two for float64."""
        if values.dtype != torch.float64:
            return [_rounded(values, self._exponent(level)).long()]
        scaled = _scaled(values, self._exponent(level))
        whole = scaled.round()
        return [whole.long(), scaled.sub_(whole).mul_(2.0 ** self._digits).round_().long()]

    def values(self, integers: Sequence[torch.Tensor], level: int) -> torch.Tensor:
        """What sums of such integers stand for, in float64."""
        exponent = self._exponent(level)
        parts = [_scaled(part.double(), -(exponent + self._digits * place)) for place, part in enumerate(integers)]
        return parts[0] if len(parts) == 1 else parts[1] + parts[0]

    def _exponent(self, level: int) -> int:
        return self._digits - _APART * level


def words_of(dtype: torch.dtype) -> int:
    """Integers that a number of this kind takes."""
    return 2 if dtype == torch.float64 else 1


def oddities(values: torch.Tensor) -> torch.Tensor:
    """What is not finite in `values`, as int64: integers whose sum tells how many NaN, +inf and -inf were added up."""
    return values.isnan() * _NAN + values.isposinf() * _PLUS + values.isneginf() * _MINUS


def with_oddities(values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """The sum `values` with the infinities and NaN that `counted` (a sum of `oddities`) puts into it."""
    plus, minus = (counted & (_NAN - 1)) >= _PLUS, (counted & (_PLUS - 1)) > 0
    values = torch.where(plus, math.inf, torch.where(minus, -math.inf, values))
    return torch.where((counted >= _NAN) | (plus & minus), math.nan, values)


def _rounded(values: torch.Tensor, exponent: int) -> torch.Tensor:
    """Whole numbers next to values * 2 ** exponent. In float32 the product is exact, or rounds to 0."""
    if values.dtype == torch.float32 and abs(exponent) < 126:
        return (values * 2.0 ** exponent).round_()
    return _scaled(values.double(), exponent).round_()


def _scaled(values: torch.Tensor, exponent: int) -> torch.Tensor:
    """values * 2 ** exponent in a new tensor, also where that factor is no float64 by itself."""
    if abs(exponent) <= 1000:
        return values * 2.0 ** exponent
    half = exponent // 2
    return values * 2.0 ** half * 2.0 ** (exponent - half)
