"""The training that proves an image: a net of one hidden layer on the digits that come with rankwise, in a second."""

import torch
import torch.nn.functional as F
from torch import nn

import rankwise as rw

LEAST_ACCURACY = 0.9


def train(run: rw.Run, epochs: int = 5, batch_size: int = 64, lr: float = 0.1) -> float:
    """Train on 1,437 images of digits, and test on 360 others; raises SystemExit where too few of them are named right.

    epochs: passes over the training images
    batch_size: images of one step, over all devices together
    lr: learning rate
    """
    train_set, test_set = rw.datasets.load("digits")
    model = run.prepare(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr, momentum=0.9))
    loader = run.loader(train_set, batch_size, shuffle=True)
    for _ in run.epochs(epochs):
        for images, labels in loader:
            run.step(F.cross_entropy(model(images), labels), optimizer)
    with torch.no_grad():
        right = [model(images).argmax(1) == labels for images, labels in run.loader(test_set, 100)]
    accuracy = float(run.mean(torch.cat(right)))
    run.print(f"{run.world_size} devices: {accuracy:.1%} of the test images are named right")
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(1)
    return accuracy


if __name__ == "__main__":
    rw.launch(train)
