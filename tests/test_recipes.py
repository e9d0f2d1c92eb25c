"""The recipes, run as users run them, and their parts held against what the tutorials say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ranks import run_ranks
from rankwise import datasets
from rankwise.launcher.options import parameters
from rankwise.recipes import cifar10, fashion, resnet, toy

RECIPES = [cifar10, fashion, resnet, toy]


def rankwise(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a folder of its own."""
    return subprocess.run([sys.executable, "-m", "rankwise", *words], cwd=folder, capture_output=True, text=True,
                          timeout=110)


def entries(run_folder: Path) -> list[dict[str, Any]]:
    """The numbers that a run logged."""
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "record" not in line]


@pytest.fixture(scope="module")
def tiny_cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 + 130 images in CIFAR-10's binary layout; the brightest of ten stripes is the label."""
    folder = tmp_path_factory.mktemp("data") / "cifar-10-batches-bin"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, count in [*((f"data_batch_{number}", 140) for number in range(1, 6)), ("test_batch", 130)]:
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 60, (count, 3, 32, 32)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 3 * label: 3 * label + 3] += 150
        rows = np.concatenate([labels[:, None], images.reshape(count, -1)], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__.rpartition(".")[2])
def test_a_recipe_is_worth_copying(recipe: Any) -> None:
    """Short, on public names alone, and each of its options says what it is."""
    text = Path(recipe.__file__).read_text()
    assert len(text.splitlines()) <= 120
    assert "rankwise." not in text.replace("import rankwise as rw", "")
    assert text.endswith('if __name__ == "__main__":\n    rw.launch(train)\n')
    if recipe is not toy:
        assert all(option.help for option in parameters(recipe.train))


def test_the_convnet_is_the_tutorials() -> None:
    """Two 3x3 convolutions of 32 and 64 channels, pooled, and linear layers 2304-128-10."""
    shapes = {name: tuple(value.shape) for name, value in cifar10.ConvNet().state_dict().items() if "weight" in name}
    assert shapes == {"conv1.weight": (32, 3, 3, 3), "conv2.weight": (64, 32, 3, 3), "fc1.weight": (128, 2304),
                      "fc2.weight": (10, 128)}


def test_the_resnet_is_a_resnet_18() -> None:
    """17 convolutions in the body and one linear layer; as many parameters as published for 32x32 images."""
    model = resnet.resnet18()
    threes = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)]
    assert len(threes) == 17
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_toy_trains(tmp_path: Path) -> None:
    """On two processes its loss falls well below the variance of its targets, 10 times that of a sine of a normal."""
    done = rankwise(tmp_path, "run", "toy", "--mode", "ddp", "--devices", "2", "--name", "it", "--", "--epochs", "10")
    assert done.returncode == 0, done.stderr
    losses = [entry["epoch_loss"] for entry in entries(tmp_path / "runs" / "it") if "epoch_loss" in entry]
    variance = 10 * (1 - np.exp(-2)) / 2
    assert len(losses) == 10
    assert losses[-1] < 0.2 * variance


def test_the_demo_reaches_its_accuracy(tmp_path: Path) -> None:
    """What `make demo` runs: DDP on two processes, over 86 % of 1,000 test images, told where the run is."""
    done = rankwise(tmp_path, "run", "fashion", "--mode", "ddp", "--devices", "2", "--name", "demo")
    assert done.returncode == 0, done.stderr
    accuracies = [entry["accuracy"] for entry in entries(tmp_path / "runs" / "demo") if "accuracy" in entry]
    assert len(accuracies) == 8
    assert accuracies[-1] >= 0.86
    assert "runs/demo" in done.stdout
    assert f"{accuracies[-1]:.1%} of the test images" in done.stdout
    assert "What next?" in done.stdout


def test_cifar10_leaves_a_plain_state_dict(tmp_path: Path, tiny_cifar: Path) -> None:
    """On two processes: steps of the global batch, accuracy over each image once, weights for plain torch."""
    done = rankwise(tmp_path, "run", "cifar10", "--mode", "ddp", "--devices", "2", "--name", "it", "--",
                    "--data", str(tiny_cifar), "--epochs", "3", "--batch-size", "64")
    assert done.returncode == 0, done.stderr
    assert "11/11 steps" in done.stdout
    model = cifar10.ConvNet()
    model.load_state_dict(torch.load(tmp_path / "ddp_model.pth", weights_only=True))
    rows = np.frombuffer((tiny_cifar / "test_batch.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    mean, std = (np.array(values)[:, None, None] for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    images = (rows[:, 1:].reshape(-1, 3, 32, 32) / 255 - mean) / std
    with torch.no_grad():
        found = model(torch.from_numpy(images).float()).argmax(1).numpy()
    accuracies = [entry["accuracy"] for entry in entries(tmp_path / "runs" / "it") if "accuracy" in entry]
    assert accuracies[-1] == pytest.approx((found == rows[:, 0]).mean())
    assert accuracies[-1] > 0.5


def resnet_in_float64(run: Any, folder: str) -> tuple[list[float], list[float], list[torch.Tensor]]:
    """The recipe's own training function: rank 0's losses of each step over all ranks, rates, and the weights."""
    torch.set_default_dtype(torch.float64)
    parts = [TensorDataset(part.images / 255.0, part.labels) for part in datasets.load(folder)]
    datasets.load = lambda name: parts   # type: ignore[assignment]
    rates, models, step, prepare = [], [], run.step, run.prepare

    def watched_step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
        rates.append(optimizer.param_groups[0]["lr"])
        return step(loss, optimizer)

    def watched_prepare(thing: Any, **options: Any) -> Any:
        models.append(prepare(thing, **options))
        return models[-1]

    run.step, run.prepare = watched_step, watched_prepare
    resnet.train(run, data=folder, epochs=1, batch_size=100, lr=0.1, width=4)
    losses = [entry["loss"] for entry in entries(run.folder) if "loss" in entry] if run.is_main else []
    return losses, rates, [value.detach().clone() for value in models[0].state_dict().values()]


def test_resnet_is_the_same_on_three_ranks(tiny_cifar: Path) -> None:
    """Augmentation, synchronised BatchNorm and the schedule: the losses and weights of one process, in float64."""
    [(losses, rates, weights)] = run_ranks(resnet_in_float64, 1, str(tiny_cifar), mode="single", log_every=1)
    assert max(losses) - min(losses) > 0.01
    assert len(rates) == 7
    assert rates[0] < 0.1 * max(rates)
    three = run_ranks(resnet_in_float64, 3, str(tiny_cifar), log_every=1)
    np.testing.assert_allclose(three[0][0][:4], losses[:4], rtol=1e-6)   # the log lags, and keeps losses in float32
    for _, others, theirs in three:
        assert others == rates
        for mine, other in zip(weights, theirs, strict=True):
            torch.testing.assert_close(other, mine, rtol=1e-9, atol=1e-10)


def test_fashion_net_fits_its_images() -> None:
    """Its loss on untrained scores is that of ten equal chances, about log 10."""
    torch.manual_seed(0)
    images, labels = torch.randn(64, 1, 14, 14), torch.randint(10, (64,))
    assert F.cross_entropy(fashion.convnet()(images), labels).item() == pytest.approx(np.log(10), rel=0.1)
