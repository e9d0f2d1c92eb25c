"""Fault: the learning rate is multiplied by the number of devices, though the global batch is the same."""

import torch
from torch import nn

import rankwise as rw


def train(run: rw.Run, epochs: int = 2):
    inputs = torch.randn(45, 8)
    data = (inputs, inputs.sin().sum(1, keepdim=True))
    model = run.prepare(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1 * run.world_size))
    loader = run.loader(data, 12, shuffle=True)
    for _ in run.epochs(epochs):
        for x, y in loader:
            run.step(nn.functional.mse_loss(model(x), y), optimizer)


if __name__ == "__main__":
    rw.launch(train)
