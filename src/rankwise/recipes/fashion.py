"""Fashion-MNIST in small, which comes with rankwise: about 88 % in 8 epochs, in seconds on a CPU."""

import torch
import torch.nn.functional as F
from torch import nn

import rankwise as rw


def convnet() -> nn.Module:
    """Images [n, 1, 14, 14] to scores [n, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),   # [n, 32, 7, 7]
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


@torch.no_grad()
def accuracy(run: rw.Run, model: nn.Module, test_set: object) -> torch.Tensor:
    """The share of images that the model gets right; each image counts once, on any number of devices."""
    model.eval()
    right = [model(images).argmax(1) == labels for images, labels in run.loader(test_set, 1000)]
    model.train()
    return run.mean(torch.cat(right))


def train(run: rw.Run, epochs: int = 8, batch_size: int = 64, lr: float = 0.05) -> None:
    """Train a small ConvNet on 5,000 images of clothes, and test it on 1,000 others.

    epochs: passes over the training images, all in one cycle: a resumed run keeps their number
    batch_size: images of one step, over all devices together
    lr: highest learning rate of the cycle
    """
    train_set, test_set = rw.datasets.load("fashion-mini")
    model = run.prepare(convnet())
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-4))
    loader = run.loader(train_set, batch_size, shuffle=True)   # 64 images a step, on one device or on many
    schedule = run.prepare(torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader)))

    for _ in run.epochs(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            if run.step(loss, optimizer):
                schedule.step()
        run.log(accuracy=accuracy(run, model, test_set))
        run.save()

    run.print(f"{accuracy(run, model, test_set):.1%} of the test images are named right. What next?\n"
              "  rankwise run fashion --devices 1     the same training on one device, with the same losses\n"
              "  rankwise recipes copy fashion .      this script, to change\n"
              "  rankwise run cifar10 --devices 2     CIFAR-10, downloaded at first use")


if __name__ == "__main__":
    rw.launch(train)
