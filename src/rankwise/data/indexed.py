"""Reading a data set by index: gathered from memory where it lies there, otherwise sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from rankwise.data.arrays import InMemory
from rankwise.data.partition import Part
from rankwise.data.plan import Turn, turns
from rankwise.data.sampling import Sampling
from rankwise.keys import mix


class Indexed:
    """The turns of a pass over an indexed data set, each with its batch."""

    def __init__(self, read: Callable[[Iterator[Turn]], Iterator[tuple[Turn, Any]]], sampling: Sampling, *, seed: int,
                 samples: int, parts_of: Callable[[int], tuple[Part, ...]], key_by_position: bool) -> None:
        self.samples = samples
        self._read, self._sampling, self._seed, self._parts_of = read, sampling, seed, parts_of
        self._key_by_position = key_by_position

    def __len__(self) -> int:
        return len(self._sampling)

    def turns(self, pass_number: int, first: int) -> Iterator[tuple[Turn, Any]]:
        """From global batch `first` on."""
        batches, order = self._sampling.of_pass(pass_number)
        key = mix(self._seed, pass_number)
        return self._read(turns(batches, order, key, self._parts_of, first=first,
                                key_by_position=self._key_by_position))


def from_memory(dataset: InMemory, device: torch.device) -> Callable[[Iterator[Turn]], Iterator[tuple[Turn, Any]]]:
    """Gathers each turn's rows, on `device`."""
    def read(coming: Iterator[Turn]) -> Iterator[tuple[Turn, Any]]:
        for turn in coming:
            yield turn, dataset.gather(torch.from_numpy(turn.indices[: turn.share.rows]), device)
    return read
