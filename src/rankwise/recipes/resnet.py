"""CIFAR-10 with a ResNet-18: SGD on one cycle, label smoothing, augmentation, synchronised BatchNorm."""

import torch
import torch.nn.functional as F
from torch import nn

import rankwise as rw


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them (He et al. 2016), [n, c, h, w] to [n, width, h/stride, w/stride]."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.around = nn.Identity() if channels == width else nn.Sequential(
            nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(features) + self.around(features))


def resnet18(width: int = 64) -> nn.Module:
    """The ResNet-18 for images of 32x32: it begins with a 3x3 convolution and no pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
        layers += [Block(channels, width * factor, stride), Block(width * factor, width * factor, 1)]
        channels = width * factor
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


@torch.no_grad()
def accuracy(run: rw.Run, model: nn.Module, test_set: object) -> torch.Tensor:
    """The share of images that the model gets right; each image counts once, on any number of devices."""
    model.eval()
    right = [model(images).argmax(1) == labels for images, labels in run.loader(test_set, 1000)]
    model.train()
    return run.mean(torch.cat(right))


def train(run: rw.Run, data: str = "cifar10", epochs: int = 30, batch_size: int = 512, lr: float = 0.4,
          weight_decay: float = 5e-4, smoothing: float = 0.1, width: int = 64) -> None:
    """Train a ResNet-18 on CIFAR-10.

    data: the data set's name (downloaded at first use), or a folder that holds its files
    epochs: passes over the training images, all in one cycle: a resumed run keeps their number
    batch_size: images of one step, over all devices together
    lr: highest learning rate of the cycle
    weight_decay: weight decay of SGD
    smoothing: share of a label that is spread over all classes
    width: channels of the first stage; 64 makes it a ResNet-18
    """
    train_set, test_set = rw.datasets.load(data)
    loader = run.loader(train_set, batch_size, shuffle=True, augment=[rw.augment.Crop(4), rw.augment.Flip()])

    model = run.prepare(resnet18(width), sync_batchnorm=True)   # statistics over the global batch
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True,
                                            weight_decay=weight_decay))
    schedule = run.prepare(torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader)))

    for _ in run.epochs(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels, label_smoothing=smoothing)
            if run.step(loss, optimizer):   # with micro-batches, the weights change once a global batch
                schedule.step()
        run.log(accuracy=accuracy(run, model, test_set))
        run.save()


if __name__ == "__main__":
    rw.launch(train)
