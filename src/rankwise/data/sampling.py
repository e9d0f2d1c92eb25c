"""Which samples a pass has, in what order, and where its global batches begin and end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from rankwise.data.order import Indices, InOrder, Listed, Order, Weighted, shuffled
from rankwise.data.plan import EvenBatches
from rankwise.data.samples import kept_randomness, seed_sample
from rankwise.errors import DataError, MisuseError, UsageError
from rankwise.group import Group
from rankwise.keys import mix

_ORDER = 1   # keeps the order's random numbers apart from those of the samples, whose key is (seed, pass)


class UnknownLengthError(MisuseError, TypeError):
    """The number of global batches in a pass is not known before its end; a TypeError as `len` raises it."""


class Sampling(Protocol):
    """What stays the same over passes: one order and one division into global batches for each."""

    def __len__(self) -> int:
        """Global batches in a pass."""
        ...

    def of_pass(self, number: int) -> tuple[Sequence[tuple[int, int]], Order]:
        """The global batches' first and last positions (exclusive), and the samples at the positions."""
        ...


class EvenSampling:
    """Global batches of one size: in order, shuffled, or drawn with replacement in proportion to `weights`.

    Raises UsageError where `drop_last` leaves no batch, and for weights that cannot be used.
    """

    def __init__(self, n: int, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool, weights: Any) -> None:
        if drop_last and n < batch_size:
            raise UsageError(f"drop_last was given with {n} samples and batches of {batch_size}.",
                             "Not one batch would be left.", "Use a smaller batch_size, or leave drop_last out.")
        self._n, self._seed, self._shuffle = n, seed, shuffle
        self._batches = EvenBatches(n, batch_size, drop_last)
        self._running_sum = None if weights is None else np.cumsum(_checked_weights(weights, n))

    def __len__(self) -> int:
        return len(self._batches)

    def of_pass(self, number: int) -> tuple[Sequence[tuple[int, int]], Order]:
        return self._batches, self._order(mix(self._seed, number, _ORDER))

    def _order(self, key: int) -> Order:
        if self._running_sum is not None:
            return Weighted(self._running_sum, key)
        return shuffled(self._n, key) if self._shuffle else InOrder()


class ListedSampling:
    """Global batches from a batch sampler, which is read anew for each pass.

    While it is read, `random`, numpy and torch are seeded by (seed, pass), so that a sampler that shuffles with them
    does so alike on all ranks and after a resume; `set_epoch(pass)` is called where it has one. Raises UsageError for
    what is no list of batches of indices, and DataError where ranks were given different batches.
    """

    def __init__(self, sampler: Iterable[Sequence[int]], n: int, *, seed: int, group: Group) -> None:
        if isinstance(sampler, Iterator) or not isinstance(sampler, Iterable):
            raise UsageError(f"batch_sampler is a {type(sampler).__name__}.",
                             "It is read anew for each pass: a list of lists of indices, or an object with __iter__.",
                             "Give list(...) of it, or a batch sampler object.")
        self._sampler, self._n, self._seed, self._group = sampler, n, seed, group
        self._count: int | None = None

    def __len__(self) -> int:
        if isinstance(self._sampler, Sized):
            return len(self._sampler)
        if self._count is None:
            raise UnknownLengthError("len(loader) was asked before the first pass.",
                                     "The batch sampler has no length, so it is known when a pass has begun.",
                                     "Give the batch sampler a __len__.")
        return self._count

    def of_pass(self, number: int) -> tuple[Sequence[tuple[int, int]], Order]:
        batches = self._read(number)
        self._count = len(batches)
        edges = np.cumsum([0, *map(len, batches)])
        indices = np.concatenate(batches)
        self._require_equal(edges, indices)
        return list(pairwise(edges.tolist())), Listed(indices)

    def _read(self, number: int) -> list[Indices]:
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(number)
        with kept_randomness():
            seed_sample(mix(self._seed, number, _ORDER))
            batches = [self._checked(batch) for batch in self._sampler]
        if not batches:
            raise UsageError("The batch sampler gave no batches.", "A pass needs at least one.",
                             "See that it can be read more than once, and what it was made from.")
        return batches

    def _checked(self, batch: Any) -> Indices:
        try:
            indices = np.asarray(batch if isinstance(batch, Sequence) else list(batch))
        except (TypeError, ValueError):
            indices = np.empty(0)
        if indices.ndim != 1 or not len(indices) or indices.dtype.kind not in "iu":
            raise UsageError(f"The batch sampler gave {_short(batch)}.",
                             "A global batch is a list of at least one index, each a whole number.",
                             "Let it yield lists such as [3, 1, 2].")
        if indices.min() < 0 or indices.max() >= self._n:
            raise UsageError(f"The batch sampler gave indices from {indices.min()} to {indices.max()}.",
                             f"The data set has samples 0 to {self._n - 1}.", "Make the sampler from this data set.")
        return indices.astype(np.int64)

    def _require_equal(self, edges: Indices, indices: Indices) -> None:
        if self._group.size == 1:
            return
        digest = hashlib.blake2b(edges.tobytes() + indices.tobytes(), digest_size=8).hexdigest()
        digests = self._group.gather_objects(digest)
        if len(set(digests)) > 1:
            other = next(rank for rank, each in enumerate(digests) if each != digests[0])
            raise DataError(f"The batch samplers of rank 0 and rank {other} gave different batches.",
                            "Each rank needs the same list of global batches; rankwise gives it its slice of each.",
                            "Do not divide by rank in the sampler (no DistributedSampler), and seed generators of its "
                            "own equally.")


def _checked_weights(weights: Any, n: int) -> Any:
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (n,) or not np.isfinite(values).all() or (values < 0).any() or not values.sum() > 0:
        raise UsageError(f"weights is an array {list(values.shape)} with values from {values.min(initial=0)} to "
                         f"{values.max(initial=0)}.",
                         f"It has one finite number for each of the {n} samples, none below 0 and not all of them 0.",
                         "Give, for example, 1 / (number of samples of the sample's class).")
    return values


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
