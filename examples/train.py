"""Fit a smooth function on any number of devices."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rankwise as rw


def train(run: rw.Run, epochs: int = 5, batch_size: int = 256, lr: float = 1e-2) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(10_007, 20)
    data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = run.prepare(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), lr))
    loader = run.loader(data, batch_size, shuffle=True)

    for _ in run.epochs(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            run.step(loss, optimizer)
        run.save()
    run.export("model.pth")


if __name__ == "__main__":
    rw.launch(train)
