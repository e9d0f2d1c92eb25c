"""The training that is injured: ragged batches, a data worker, dropout, a schedule, evaluation. Notes what it does."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

import rankwise as rw

SAMPLES, BATCH = 103, 9   # twelve steps an epoch, the last of 4 samples: no rank count divides them


class Images(torch.utils.data.Dataset):   # type: ignore[type-arg]
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs, self.targets = (torch.randn(SAMPLES, size, generator=generator) for size in (6, 1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(6), self.targets[index]


def note(kind: str, step: int) -> None:
    """A line for the referee: which process does what, at which step, when."""
    with open("notes", "a") as notes:   # noqa: PTH123 (one write, which the system appends whole)
        notes.write(f"{os.getpid()} {kind} {step} {time.monotonic()}\n")


def train(run: rw.Run, epochs: int = 8, pace: float = 0.02) -> None:
    """Train for some epochs of twelve steps, each of which takes `pace` seconds more than it would."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    model = run.prepare(net)
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), lr=0.01))
    schedule = run.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 17, 0.7))
    loader = run.loader(Images(), BATCH, shuffle=True, num_workers=1)
    scored = run.loader(Images(), BATCH)
    for _ in run.epochs(epochs):
        for inputs, targets in loader:
            if run.step(nn.functional.mse_loss(model(inputs), targets), optimizer):
                schedule.step()
                note("step", run.steps)
                time.sleep(pace)
        note("evaluate", run.steps)
        model.eval()
        with torch.no_grad():
            losses = [nn.functional.mse_loss(model(inputs), targets, reduction="none") for inputs, targets in scored]
            time.sleep(5 * pace)
        model.train()
        run.log(held_out=run.mean(torch.cat(losses)[:, 0]))
    run.export("final.pt")


if __name__ == "__main__":
    rw.launch(train)
