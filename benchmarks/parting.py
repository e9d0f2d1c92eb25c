"""How far trainings on 2, 3 and 4 ranks part from the one on 1 rank, in plain ddp and in exact mode.

    python benchmarks/parting.py

A small net with ReLU and max-pooling in float32: rounding makes one of them choose otherwise after some hundred steps,
and from there the trainings part. In exact mode the difference is 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import rankwise as rw

_STEPS, _ROWS, _BATCH, _SHARDS = 200, 1000, 64, 12


def train(run: rw.Run) -> list[float]:
    """The mean loss over the global batch of each step."""
    torch.manual_seed(0)
    model = run.prepare(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
                                      nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1152, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
    images, labels = torch.randn(_ROWS, 3, 32, 32), torch.randint(10, (_ROWS,))
    losses: list[float] = []
    total = rows = 0.0
    for _ in run.epochs(1 + _STEPS * _BATCH // _ROWS):
        for batch, goal in run.loader((images, labels), _BATCH, shuffle=True):
            loss = F.cross_entropy(model(batch), goal)
            total, rows = total + float(loss.nan_to_num()) * len(batch), rows + len(batch)
            if run.step(loss, optimizer):
                losses.append(float(run.sum(total) / run.sum(rows)))
                total = rows = 0.0
    return losses[:_STEPS]


def main() -> None:
    for exact in (None, _SHARDS):
        print(f"{'plain' if exact is None else f'exact, V = {exact}'}: largest difference in the loss to 1 rank")
        alone = rw.launch(train, devices=1, threads=1, exact=exact, accelerator="cpu", runs="runs/parting")
        for devices in (2, 3, 4):
            found = rw.launch(train, devices=devices, threads=1, exact=exact, accelerator="cpu", runs="runs/parting")
            apart = [abs(one - other) for one, other in zip(alone, found, strict=True)]
            print(f"  {devices} ranks: step 1 {apart[0]:.1e}, up to step 50 {max(apart[:50]):.1e}, "
                  f"up to step {_STEPS} {max(apart):.1e}", flush=True)


if __name__ == "__main__":
    main()
