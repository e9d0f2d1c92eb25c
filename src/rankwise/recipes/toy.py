"""A regression by a network of 10-50-1 units: the shortest script."""

import torch
from torch import nn

import rankwise as rw


def train(run: rw.Run, epochs: int = 20, batch_size: int = 64, lr: float = 0.05) -> None:
    inputs = torch.randn(1000, 10)
    targets = inputs.sin().sum(1, keepdim=True)

    model = run.prepare(nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 1)))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr))
    loader = run.loader((inputs, targets), batch_size, shuffle=True)   # 64 samples a step, on one device or on many

    for _ in run.epochs(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            run.step(loss, optimizer)
        run.save()


if __name__ == "__main__":
    rw.launch(train)
