"""Samples of a map-style data set, each with randomness of its own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rankwise.data.collation import Collate, collate_nothing
from rankwise.data.plan import Turn


def seed_sample(key: int) -> None:
    """Seed `random`, numpy and torch (CPU) from a 64-bit key.

    numpy and torch get different halves of it: with equal seeds they would draw the same numbers.
    """
    random.seed(key)
    np.random.seed(key >> 32)
    torch.default_generator.manual_seed(key & 0xFFFFFFFF)


@contextlib.contextmanager
def kept_randomness() -> Iterator[None]:
    """Leave the generators of `random`, numpy and torch (CPU) as they were before the block."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(cpu)


class SampleReader:
    """Reads the samples of a turn and collates them, in this process or in a worker."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, turn: Turn) -> Any:
        indices, keys = turn.indices.tolist(), turn.keys.tolist()
        if turn.share.rows == 0:
            return collate_nothing(self._collate, lambda: self._sample(indices[0], keys[0]))
        return self._collate([self._sample(index, key) for index, key in zip(indices, keys, strict=True)])

    def _sample(self, index: int, key: int) -> Any:
        seed_sample(key)
        try:
            return self._dataset[index]
        except Exception as error:
            note = getattr(error, "add_note", None)   # Python 3.11
            if note is not None:
                note(f"while sample {index} of the data set was read")
            raise
