"""Fit a smooth function on one device."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(epochs: int = 5, batch_size: int = 256, lr: float = 1e-2) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(10_007, 20)
    data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr)
    loader = DataLoader(data, batch_size, shuffle=True)

    for epoch in range(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: last loss {loss.item():.4f}")
    torch.save(model.state_dict(), "model.pth")


if __name__ == "__main__":
    train()
