"""The indices that a script's torch DataLoader reads: noted batch by batch, and given to the ranks of another run."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rankwise.witness.hooks import replaced
from rankwise.witness.plan import record_file
from rankwise.world import World

INDICES = "indices"


def noted(write: Callable[..., None]) -> AbstractContextManager[None]:
    """A block in which each batch of indices that a training asks for is an entry of the record."""
    def wrap(original: Any) -> Any:
        def next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if torch.is_grad_enabled() and isinstance(indices, list) and all(isinstance(each, int) for each in indices):
                write(INDICES, indices=indices)
            return indices
        return next_index
    return replaced(_BaseDataLoaderIter, "_next_index", wrap)


def replayed(reference: Path, world: World) -> AbstractContextManager[None]:
    """A block in which each rank reads its part of the reference's batches, whatever its sampler says."""
    batches = iter(_read(reference))

    def wrap(original: Any) -> Any:
        def next_index(iterator: Any) -> Any:
            indices = original(iterator)   # it says where a pass ends
            batch = next(batches, None) if torch.is_grad_enabled() and isinstance(indices, list) else None
            return indices if batch is None else _slice(batch, world)
        return next_index
    return replaced(_BaseDataLoaderIter, "_next_index", wrap)


def _read(reference: Path) -> list[list[int]]:
    lines = record_file(reference, 0).read_text(encoding="utf-8").splitlines()
    return [entry["indices"] for entry in map(json.loads, lines) if entry["kind"] == INDICES]


def _slice(batch: list[int], world: World) -> list[int]:
    """Consecutive parts whose sizes differ by at most one; a rank is never left without a sample."""
    start, stop = (len(batch) * rank // world.size for rank in (world.rank, world.rank + 1))
    return batch[start:max(stop, start + 1)]
