"""A group without other processes, and a loader on it: what one rank of several would read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from rankwise.data.loader import Loader
from rankwise.group import Pending
from rankwise.ledger import Ledger
from rankwise.microbatch import MicroBatch


@dataclass
class StandIn:
    """Rank `rank` of `size`, where every other rank has and says the same."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    timeout_seconds: float = 30.0
    ledger: Ledger = field(default_factory=Ledger)

    def gather_objects(self, value: Any) -> list[Any]:
        return [value] * self.size

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        everyones = tensor.sum(-1, keepdim=True).expand_as(tensor)   # each rank fills a column of its own
        return Pending(everyones, self.ledger)


def loader(dataset: Any, batch_size: int | None = None, *, rank: int = 0, size: int = 1, shares: Any = None,
           **options: Any) -> Loader:
    """A loader of one rank; `shares`, a list, receives each micro-batch's share (None: the pass is over)."""
    def note(_: Loader, share: MicroBatch | None) -> None:
        if shares is not None:
            shares.append(share)
    return Loader(dataset, batch_size, group=StandIn(rank, size), seed=options.pop("seed", 0), on_micro_batch=note,
                  **options)
