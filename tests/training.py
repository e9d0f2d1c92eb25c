"""Small models, data and hand-made micro-batches for the tests of modes and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.modes import Mode, open_mode
from rankwise.step import Stepper


def data(rows: int, features: int = 6, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [rows, features] float64 and labels [rows] int64, the same in every process."""
    generator = np.random.default_rng(7)
    return (torch.from_numpy(generator.normal(size=(rows, features))),
            torch.from_numpy(generator.integers(0, classes, size=rows)))


def mlp(features: int = 6, classes: int = 3) -> nn.Module:
    """A float64 network with one hidden layer, the same in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes)).double()


def state_of(module: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    """Values of parameters and buffers that can travel between processes."""
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def gradients_of(module: nn.Module) -> list[np.ndarray[Any, Any]]:
    return [parameter.grad.detach().numpy().copy() for parameter in module.parameters() if parameter.grad is not None]


def micro_batches(rank: int, ranks: int, start: int, stop: int, bound: int | None = None
                  ) -> Iterator[tuple[MicroBatch, slice]]:
    """The micro-batches of one rank for the global batch [start, stop): what a loader hands out."""
    edges = [start + (stop - start) * part // ranks for part in range(ranks + 1)]
    largest = max(edges[part + 1] - edges[part] for part in range(ranks))
    turns = 1 if bound is None else -(-largest // bound)
    first, last = edges[rank], edges[rank + 1]
    cuts = [first + (last - first) * turn // turns for turn in range(turns + 1)]
    for turn in range(turns):
        rows = slice(cuts[turn], cuts[turn + 1])
        yield MicroBatch(rows=rows.stop - rows.start, global_rows=stop - start, is_first=turn == 0,
                         is_last=turn == turns - 1), rows


def open_parts(group: Group, mode: str = "ddp", amp: str = "no", devices: int = 1) -> tuple[Mode, Stepper]:
    return open_mode(mode, group=group, devices=devices, amp=amp), Stepper(group, amp)


def backward(mode: Mode, stepper: Stepper, loss: torch.Tensor, micro_batch: MicroBatch, **options: Any) -> torch.Tensor:
    """What a run does for `run.backward`."""
    weighed = stepper.weigh(loss, micro_batch, **options)
    with mode.reducing(loss, micro_batch, weighed.amount if weighed.may_be_empty else None):
        loss.backward(weighed.seed)
    return weighed.amount
