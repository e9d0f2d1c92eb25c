"""CIFAR-10 with a ConvNet of two convolutions: Adam, global batch 256, about 69 % in 10 epochs."""

import torch
import torch.nn.functional as F
from torch import nn

import rankwise as rw


class ConvNet(nn.Module):
    """Images [n, 3, 32, 32] to scores [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * 6 * 6, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)     # [n, 32, 15, 15]
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)   # [n, 64, 6, 6]
        scores: torch.Tensor = self.fc2(F.relu(self.fc1(features.flatten(1))))
        return scores


@torch.no_grad()
def accuracy(run: rw.Run, model: nn.Module, test_set: object) -> torch.Tensor:
    """The share of images that the model gets right; each image counts once, on any number of devices."""
    model.eval()
    right = [model(images).argmax(1) == labels for images, labels in run.loader(test_set, 1000)]
    model.train()
    return run.mean(torch.cat(right))


def train(run: rw.Run, data: str = "cifar10", epochs: int = 10, batch_size: int = 256, lr: float = 1e-3) -> None:
    """Train the ConvNet on CIFAR-10 and leave its weights in ddp_model.pth.

    data: the data set's name (downloaded at first use), or a folder that holds its files
    epochs: passes over the training images
    batch_size: images of one step, over all devices together
    lr: learning rate of Adam
    """
    train_set, test_set = rw.datasets.load(data)
    model = run.prepare(ConvNet())
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), lr))
    loader = run.loader(train_set, batch_size, shuffle=True)   # 256 images a step, on one device or on 64

    for _ in run.epochs(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            run.step(loss, optimizer)
        run.log(accuracy=accuracy(run, model, test_set))
        run.save()
    run.export("ddp_model.pth")


if __name__ == "__main__":
    rw.launch(train)
