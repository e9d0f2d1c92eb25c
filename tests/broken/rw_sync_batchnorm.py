"""Sound: BatchNorm over the samples of all devices."""

import torch
from torch import nn

import rankwise as rw


def train(run: rw.Run, epochs: int = 2):
    inputs = torch.randn(45, 8)
    data = (inputs, inputs.sin().sum(1, keepdim=True))
    model = run.prepare(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)), sync_batchnorm=True)
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(data, 12, shuffle=True)
    for _ in run.epochs(epochs):
        for x, y in loader:
            run.step(nn.functional.mse_loss(model(x), y), optimizer)


if __name__ == "__main__":
    rw.launch(train)
