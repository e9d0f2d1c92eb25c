"""Step time of `run.step` against a loop written by hand over DistributedDataParallel: same model, same batches.

    python benchmarks/step.py --devices 2                    2 ranks: the tutorial's ConvNet and a small MLP
    python benchmarks/step.py --devices 1                    1 rank: microseconds more a step on the MLP

Both loops live in the same processes and take turns in blocks of steps; the weights are compared at the end, since a
faster loop that trains differently is a fault. With one rank, which waits for nobody, the time is the thread's CPU
time: what other programs take from it is no part of the step.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from interleave import Comparison, as_json, comparisons, measure, table
from torch import nn
from torch.utils.data import TensorDataset

import rankwise as rw
from rankwise.data.loader import Loader
from rankwise.data.partition import even_slices


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2304, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                         nn.Linear(128, 10))


class Case(NamedTuple):
    """A model, its input, and how long a block is."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    global_batch: int
    steps: int
    blocks_a_round: int

    def data(self) -> TensorDataset:
        """One pass is one block."""
        generator, n = torch.Generator().manual_seed(0), self.global_batch * self.steps
        return TensorDataset(torch.randn(n, *self.shape, generator=generator),
                             torch.randint(10, (n,), generator=generator))


CASES = {"ConvNet": Case(convnet, (3, 32, 32), 256, 5, blocks_a_round=1),
         "MLP": Case(mlp, (64,), 64, 200, blocks_a_round=5)}

Block = Callable[[], float]


def clock(run: rw.Run) -> float:
    """Seconds of a running clock."""
    return time.thread_time() if run.world_size == 1 else time.perf_counter()


def by_hand(run: rw.Run, case: Case, data: TensorDataset, loader: Loader) -> tuple[nn.Module, Block]:
    """The reference: the batches of `loader` in the same order, their indices known beforehand."""
    torch.manual_seed(1)
    model = case.build()
    wrapped = nn.parallel.DistributedDataParallel(model) if run.world_size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    edges = even_slices(case.global_batch, run.world_size)
    images, labels = data.tensors
    passes = itertools.count()

    def block() -> float:
        order = loader._source._sampling.of_pass(next(passes))[1].at(np.arange(len(data)))
        own = [torch.from_numpy(batch[edges[run.rank]:edges[run.rank + 1]]) for batch in np.split(order, case.steps)]
        started = clock(run)
        for index in own:
            loss = F.cross_entropy(wrapped(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (clock(run) - started) / case.steps

    return model, block


def by_rankwise(run: rw.Run, case: Case, data: TensorDataset) -> tuple[nn.Module, Block, Loader]:
    """The same training as a rankwise script has it."""
    torch.manual_seed(1)
    model = run.prepare(case.build())
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), 1e-3))
    loader = run.loader(data, case.global_batch, shuffle=True)

    def block() -> float:
        started = clock(run)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            run.step(loss, optimizer)
        return (clock(run) - started) / case.steps

    return model, block, loader


def compare(run: rw.Run, name: str, case: Case, rounds: int) -> list[Comparison]:
    """Take turns, and print what came out."""
    data = case.data()
    own_model, own, loader = by_rankwise(run, case, data)
    hand_model, hand = by_hand(run, case, data, loader)
    _, control = by_hand(run, case, data, loader)
    found = comparisons(measure({"by hand": hand, "run.step": own}, control=control,
                                rounds=rounds * case.blocks_a_round))
    with torch.no_grad():
        pairs = zip(hand_model.parameters(), own_model.parameters(), strict=True)
        apart = max(float((one - other).abs().max()) for one, other in pairs)
    run.print(table(f"{name}, global batch {case.global_batch}, {run.world_size} rank(s); weights at the end differ by "
                    f"at most {apart:.1e}", found))
    return found


def bench(run: rw.Run, rounds: int = 20, output: str = "") -> None:
    """Compare the two loops; rank 0 prints the tables.

    Args:
        rounds: blocks of each loop on the ConvNet; on the MLP, whose blocks are short, five times as many
        output: file for the figures as JSON
    """
    os.sched_setaffinity(0, {run.rank % (os.cpu_count() or 1)})
    found = {}
    for _ in run.epochs(1):
        for name, case in CASES.items():
            found[name] = as_json(compare(run, name, case, rounds))
    if output and run.is_main:
        figures = {"world_size": run.world_size, "torch": torch.__version__, "load": os.getloadavg(), **found}
        Path(output).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    rw.launch(bench)
