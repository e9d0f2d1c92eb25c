"""The tutorial's CIFAR-10 training in every mode, side by side: the loss column is the same.

    python benchmarks/cifar.py --data DIR                    10 epochs in single, dp and ddp on 2 and 3 ranks

Also trains plain single-process PyTorch, written without rankwise, on the same data in its own order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYOUTS = {"single": ("single", 1), "dp on 2": ("dp", 2), "ddp on 2": ("ddp", 2), "ddp on 3": ("ddp", 3)}


def rankwise(mode: str, devices: int, data: str, epochs: int, runs: Path) -> dict[str, list[float]]:
    """The epochs of one run, from its metrics.jsonl."""
    name = f"{mode}{devices}"
    command = [str(Path(sys.executable).parent / "rankwise"), "run", "cifar10", "--mode", mode, "--devices",
               str(devices), "--runs", str(runs), "--name", name, "--", "--data", data, "--epochs", str(epochs)]
    started = time.perf_counter()
    subprocess.run(command, check=True, timeout=3600, cwd=runs)
    entries = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    ends = [entry for entry in entries if "epoch_loss" in entry]
    return {"loss": [entry["epoch_loss"] for entry in ends],
            "accuracy": [entry["accuracy"] for entry in entries if "accuracy" in entry],
            "steps": [entry["step"] for entry in ends], "seconds": [time.perf_counter() - started]}


def plain(data: str, epochs: int) -> dict[str, list[float]]:
    """The same net, optimizer and batch size in plain PyTorch, one process."""
    import torch
    import torch.nn.functional as F

    from rankwise.datasets import load
    from rankwise.recipes.cifar10 import ConvNet
    torch.manual_seed(0)
    train_set, test_set = load(data)
    (images, labels), (test_images, test_labels) = (
        (torch.stack([part[i][0] for i in range(len(part))]), torch.tensor([int(part[i][1]) for i in range(len(part))]))
        for part in (train_set, test_set))
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses, accuracies, started = [], [], time.perf_counter()
    for _ in range(epochs):
        total = 0.0
        for index in torch.randperm(len(images)).split(256):
            loss = F.cross_entropy(model(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        losses.append(total / len(images))
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum())
                        for x, y in zip(test_images.split(500), test_labels.split(500), strict=True))
        accuracies.append(right / len(test_images))
    return {"loss": losses, "accuracy": accuracies, "seconds": [time.perf_counter() - started],
            "steps": [-(-len(images) // 256) * (epoch + 1) for epoch in range(epochs)]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with cifar-10-batches-py or cifar-10-batches-bin")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--output", type=Path)
    asked = options.parse_args()
    data = str(Path(asked.data).resolve())
    with tempfile.TemporaryDirectory() as folder:
        columns = {name: rankwise(*layout, data, asked.epochs, Path(folder)) for name, layout in LAYOUTS.items()}
    columns["plain PyTorch, own order"] = plain(data, asked.epochs)
    print("| epoch | " + " | ".join(columns) + " |\n|" + " --- |" * (len(columns) + 1))
    for epoch in range(asked.epochs):
        print(f"| {epoch + 1} | " + " | ".join(f"{column['loss'][epoch]:.4f}" for column in columns.values()) + " |")
    for name, column in columns.items():
        print(f"{name}: {column['steps'][0]:.0f} steps in the first epoch, test accuracy {column['accuracy'][-1]:.4f}, "
              f"{column['seconds'][0]:.0f} s")
    if asked.output:
        asked.output.write_text(json.dumps(columns, indent=1) + "\n")


if __name__ == "__main__":
    main()
