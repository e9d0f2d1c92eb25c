"""Step time of `run.step` against a loop written by hand over DistributedDataParallel: same model, same batches.

    python benchmarks/step.py --devices 2                    2 ranks: the tutorial's ConvNet and a small MLP
    python benchmarks/step.py --devices 1                    1 rank: microseconds more a step on the MLP

Both loops live in the same processes and take turns in blocks of steps; the weights are compared at the end, since a
faster loop that trains differently is a fault.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from interleave import measure, ratios, table
from torch import nn
from torch.utils.data import TensorDataset

import rankwise as rw
from rankwise.data.order import Order
from rankwise.data.partition import even_slices


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2304, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                         nn.Linear(128, 10))


CASES = {"ConvNet": (convnet, (3, 32, 32), 256, 10), "MLP": (mlp, (64,), 64, 200)}


def by_hand(run: rw.Run, build: Callable[[], nn.Module], data: TensorDataset, batch: int, steps: int
            ) -> tuple[nn.Module, Callable[[], float]]:
    """The reference: the same batches in the same order, indices known beforehand."""
    torch.manual_seed(1)
    model = build()
    wrapped = nn.parallel.DistributedDataParallel(model) if run.world_size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    bounds = even_slices(batch, run.world_size)
    turn = 0

    def block() -> float:
        nonlocal turn
        order = Order(len(data), run.settings.seed, turn).indices(0, batch * steps)
        own = [torch.from_numpy(order[i * batch + bounds[run.rank]:i * batch + bounds[run.rank + 1]])
               for i in range(steps)]
        turn += 1
        started = time.perf_counter()
        for index in own:
            images, labels = data.tensors[0][index], data.tensors[1][index]
            loss = F.cross_entropy(wrapped(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - started) / steps

    return model, block


def by_rankwise(run: rw.Run, build: Callable[[], nn.Module], data: TensorDataset, batch: int, steps: int
                ) -> tuple[nn.Module, Callable[[], float]]:
    torch.manual_seed(1)
    model = run.prepare(build())
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), 1e-3))
    loader = run.loader(data, batch, shuffle=True)

    def block() -> float:
        started = time.perf_counter()
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            run.step(loss, optimizer)
        return (time.perf_counter() - started) / steps

    return model, block


def bench(run: rw.Run, rounds: int = 20, output: str = "") -> None:
    """Compare the two loops; rank 0 prints the table.

    Args:
        rounds: blocks of each loop
        output: file for the figures as JSON
    """
    os.sched_setaffinity(0, {run.rank % (os.cpu_count() or 1)})
    results = {}
    for name, (build, shape, batch, steps) in CASES.items():
        generator = torch.Generator().manual_seed(0)
        data = TensorDataset(torch.randn(batch * steps, *shape, generator=generator),
                             torch.randint(10, (batch * steps,), generator=generator))
        hand_model, hand = by_hand(run, build, data, batch, steps)
        control_model, control = by_hand(run, build, data, batch, steps)
        own_model, own = by_rankwise(run, build, data, batch, steps)
        found = ratios(measure({"by hand": hand, "run.step": own}, rounds=rounds, control=control))
        gap = max(float((a - b).abs().max()) for a, b in zip(hand_model.parameters(), own_model.parameters(),
                                                              strict=True))
        run.print(table(f"{name}, global batch {batch}, {run.world_size} rank(s); largest difference of a weight at "
                        f"the end {gap:.1e}", found))
        results[name] = {ratio.name: vars(ratio) for ratio in found}
        del control_model
    if output and run.is_main:
        Path(output).write_text(json.dumps({"world_size": run.world_size, "torch": torch.__version__, **results},
                                           indent=1) + "\n")


if __name__ == "__main__":
    rw.launch(bench)
