"""The order of a pass: which sample stands at a position, as a pure function of a key.

An order answers for any positions at once, in any sequence, without having computed the ones before: a rank asks for
its own slices only, and a resumed run for the rest of a pass.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rankwise.keys import mix, mix_array

Indices = NDArray[np.int64]
Keys = NDArray[np.uint64]

_SORTED = 1 << 16   # up to here a sort of 64-bit keys is as quick as a network, and exactly uniform
_ROUNDS = 6


class Order(Protocol):
    """Which samples stand at the given positions of a pass."""

    def at(self, positions: Indices) -> Indices:
        """Sample indices, int64 [m], at positions, int64 [m]."""
        ...


class InOrder:
    """The order of the data set itself."""

    def at(self, positions: Indices) -> Indices:
        return positions


class Listed:
    """An order written out: `indices`, int64 [n]."""

    def __init__(self, indices: Indices) -> None:
        self._indices = indices

    def at(self, positions: Indices) -> Indices:
        return self._indices[positions]


class Weighted(Order):
    """Independent draws with replacement, in proportion to weights given as their running sum, float64 [n]."""

    def __init__(self, running_sum: NDArray[np.float64], key: int) -> None:
        self._running_sum, self._key = running_sum, key
        self._last = int(np.searchsorted(running_sum, running_sum[-1]))   # rounding may not reach past this one

    def at(self, positions: Indices) -> Indices:
        draws = (mix_array(self._key, positions.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
        found = np.searchsorted(self._running_sum, draws * self._running_sum[-1], side="right")
        indices: Indices = np.minimum(found, self._last)
        return indices


def shuffled(n: int, key: int) -> Order:
    """A permutation of 0 .. n-1 chosen by `key`, in constant memory."""
    if n <= _SORTED:
        return Listed(np.argsort(mix_array(key, np.arange(n, dtype=np.uint64))))   # mixing is one to one: no ties
    return Network(n, key)


class Network(Order):
    """A keyed permutation of 0 .. n-1 that computes each place by itself.

    A Feistel network over pairs (left < a, right < b) with a * b >= n permutes 0 .. a*b-1; a value past the end is sent
    through again until it lies below n (Black and Rogaway: Ciphers with Arbitrary Finite Domains, CT-RSA 2002). With a
    and b next to the root of n that happens to fewer than one value in sqrt(n).
    """

    def __init__(self, n: int, key: int) -> None:
        self._n = n
        self._a = int(np.ceil(np.sqrt(n)))
        self._b = -(-n // self._a)
        self._keys = [mix(key, number) for number in range(_ROUNDS)]

    def at(self, positions: Indices) -> Indices:
        values = self._permuted(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._n)
        while len(outside):
            values[outside] = self._permuted(values[outside])
            outside = outside[values[outside] >= self._n]
        return values.astype(np.int64)

    def _permuted(self, values: Keys) -> Keys:
        left, right = np.divmod(values, np.uint64(self._b))
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            left = _shifted(left, mix_array(even, right), self._a)
            right = _shifted(right, mix_array(odd, left), self._b)
        permuted: Keys = left * np.uint64(self._b) + right
        return permuted


def _shifted(values: Keys, by: Keys, modulus: int) -> Keys:
    """(values + a random number below `modulus`) modulo `modulus`, without a division."""
    draws = ((by >> np.uint64(32)) * np.uint64(modulus)) >> np.uint64(32)
    total = values + draws
    wrapped: Keys = total - np.uint64(modulus)   # below the modulus this wraps round to a huge number
    smaller: Keys = np.minimum(total, wrapped)
    return smaller
