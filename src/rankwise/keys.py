"""Keyed random numbers: a pure function of a few integers, the same on every rank, worker and device count.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014), which passes BigCrush as a counter-based generator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(*words: int) -> int:
    """One 64-bit key from a sequence of integers (seed, epoch, index, ...); order matters."""
    key = 0
    for word in words:
        key = mix_in(key, word)
    return key


def mix_in(key: int, word: int) -> int:
    """`mix(...)` continued by one more word."""
    state = (key ^ (word & _MASK)) * _GOLDEN + _GOLDEN & _MASK
    state = ((state ^ (state >> 30)) * _FIRST) & _MASK
    state = ((state ^ (state >> 27)) * _SECOND) & _MASK
    return state ^ (state >> 31)


def mix_array(key: int, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix(...)` continued by one more word, for a whole array: uint64 [n] -> uint64 [n]."""
    state = (words ^ np.uint64(key)) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed
