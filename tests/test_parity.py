"""Two hundred steps on one device or many end in the weights of plain PyTorch in one process, in float64."""

from __future__ import annotations

import functools
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from ranks import run_groups
from rankwise.group import Group
from rankwise.modes import open_mode
from rankwise.monitor import Monitor
from rankwise.run import Run
from rankwise.settings import Settings
from rankwise.stepagreement import StepAgreement
from training import data, mlp, state_of

ROWS, BATCH = 107, 8   # 14 steps an epoch; the tail of 3 rows leaves one rank of 4 without any
LONG, SHORT = 15, 4    # epochs: 210 steps, and 56 where another scenario has the same arithmetic
LAYOUTS = {"single": ("single", 1, 1), "dp on 3": ("dp", 1, 3), "ddp on 2": ("ddp", 2, 2), "ddp on 3": ("ddp", 3, 3),
           "ddp on 4": ("ddp", 4, 4)}

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Tied(nn.Module):
    """Encoder and decoder share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.code, self.back, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.back.weight = self.code.weight
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.back(torch.tanh(self.code(inputs)))))


class Checkpointed(nn.Module):
    """The hidden part is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body[2](checkpoint(self.body[:2], inputs, use_reentrant=False))


class Idle(nn.Module):
    """Has a head that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.idle = nn.Linear(8, 8).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)


class Convolutions(nn.Module):
    """Two convolutions with ReLU and pooling."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                    nn.Linear(8, 3)).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs.view(-1, 1, 2, 3))


def normalised() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def mean_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), labels)


def sum_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), labels, reduction="sum")


CLASS_WEIGHTS = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)


def class_weighted(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), labels, weight=CLASS_WEIGHTS)


def masked(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A mean over rows that are not of class 0, whose denominator may be 0 on a rank."""
    mask = (labels > 0).double()
    return (F.cross_entropy(model(inputs), labels, reduction="none") * mask).sum() / mask.sum()


def ignoring(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), labels, ignore_index=0)


def counted(labels: torch.Tensor) -> torch.Tensor:
    return (labels > 0).sum()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One training, as data: the same for rankwise and for plain PyTorch."""

    model: Callable[[], nn.Module] = mlp
    loss: Loss = mean_loss
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    weight: Callable[[torch.Tensor], Any] | None = None
    reduction: str = "mean"
    clip_norm: float | None = None
    micro_batch: int | None = None
    ema: bool = False
    epochs: int = LONG
    prepare: dict[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "plain": Scenario(),
    "AdamW": Scenario(optimizer=lambda model: torch.optim.AdamW(model.parameters(), 1e-2)),
    "accumulation": Scenario(micro_batch=2),
    "class weights": Scenario(loss=class_weighted, weight=lambda labels: CLASS_WEIGHTS[labels].sum()),
    "ignored labels": Scenario(epochs=SHORT, loss=ignoring, weight=lambda labels: int(counted(labels))),
    "masked mean": Scenario(epochs=SHORT, loss=masked, weight=counted),
    "masked mean, accumulation": Scenario(epochs=SHORT, loss=masked, weight=counted, micro_batch=1),
    "sum": Scenario(loss=sum_loss, reduction="sum",
                    optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.01)),
    "clipped": Scenario(clip_norm=0.2),
    "clipped, weighted, accumulation": Scenario(epochs=SHORT, loss=class_weighted, clip_norm=0.2, micro_batch=1,
                                                weight=lambda labels: CLASS_WEIGHTS[labels].sum()),
    "tied weights": Scenario(epochs=SHORT, model=Tied),
    "frozen layer": Scenario(epochs=SHORT, model=frozen),
    "unused parameters": Scenario(epochs=SHORT, model=Idle, prepare={"find_unused": True}),
    "unused parameters, accumulation": Scenario(epochs=SHORT, model=Idle, prepare={"find_unused": True}, micro_batch=2),
    "static graph": Scenario(epochs=SHORT, prepare={"static_graph": True}),
    "static graph, accumulation": Scenario(epochs=SHORT, prepare={"static_graph": True}, micro_batch=2),
    "EMA": Scenario(epochs=SHORT, ema=True),
    "activation checkpointing": Scenario(epochs=SHORT, model=Checkpointed),
    "convolutions": Scenario(model=Convolutions),
    "synchronised BatchNorm": Scenario(model=normalised, prepare={"sync_batchnorm": True}),
}


def scenarios_of(mode: str) -> list[str]:
    """All of them; dp refuses to synchronise BatchNorm."""
    return [name for name, scenario in SCENARIOS.items()
            if not (mode == "dp" and scenario.prepare.get("sync_batchnorm"))]


def train(run: Run, scenario: Scenario) -> dict[str, Any]:
    """The training as a user writes it."""
    model = run.prepare(scenario.model(), **scenario.prepare)
    optimizer = run.prepare(scenario.optimizer(model))
    schedule = run.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5))
    ema = run.prepare(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
    loader = run.loader(data(ROWS), BATCH, micro_batch=scenario.micro_batch)
    first = None
    for _ in run.epochs(scenario.epochs):
        for inputs, labels in loader:
            options = {} if scenario.weight is None else {"weight": scenario.weight(labels)}
            if run.step(scenario.loss(model, inputs, labels), optimizer, reduction=scenario.reduction,
                        clip_norm=scenario.clip_norm, **options):
                schedule.step()
                ema.update_parameters(model)
                first = first or state_of(model)
    return {"first": first, "last": state_of(ema if scenario.ema else model), "steps": run.steps}


def train_plainly(scenario: Scenario) -> dict[str, Any]:
    """The training in plain PyTorch."""
    model = scenario.model()
    optimizer = scenario.optimizer(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    (inputs, labels), first, steps = data(ROWS), None, 0
    for _ in range(scenario.epochs):
        for start in range(0, ROWS, BATCH):
            optimizer.zero_grad()
            scenario.loss(model, inputs[start:start + BATCH], labels[start:start + BATCH]).backward()
            if scenario.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), scenario.clip_norm)
            optimizer.step()
            schedule.step()
            ema.update_parameters(model)
            first = first or state_of(model)
            steps += 1
    return {"first": first, "last": state_of(ema if scenario.ema else model), "steps": steps}


def open_runs(group: Group, mode: str, devices: int) -> Iterator[Callable[[], Run]]:
    """Runs one after the other over one group, which saves starting processes for each."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(mode=mode, devices=devices, runs=folder, log_every=1000)

        def fresh() -> Run:
            opened = open_mode(mode, group=group, devices=devices, amp="no")
            return Run(settings, group=group, mode=opened, monitor=Monitor(group, Path(folder), settings),
                       folder=Path(folder), agreement=StepAgreement(None, limit_seconds=1))
        yield fresh


def train_all(group: Group, mode: str, devices: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for fresh in open_runs(group, mode, devices):
        for name in scenarios_of(mode):
            run = fresh()
            try:
                results[name] = train(run, SCENARIOS[name])
            except Exception:
                results[name] = traceback.format_exc()
            run.close()
    return results


@functools.cache
def results_of(layout: str) -> list[dict[str, Any]]:
    mode, ranks, devices = LAYOUTS[layout]
    return run_groups(train_all, ranks, mode, devices, deadline_seconds=280)


@functools.cache
def expected_of(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return train_plainly(SCENARIOS[name])


@pytest.mark.timeout(300)   # the first test of a layout trains all its scenarios
@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, (mode, _, _) in LAYOUTS.items()
                                              for name in scenarios_of(mode)])
def test_parity(layout: str, name: str) -> None:
    """Every rank ends in the weights of one plain process: 1e-12 after one step, 1e-10 after all."""
    expected, before = expected_of(name), state_of(SCENARIOS[name].model())
    if not SCENARIOS[name].ema:
        assert max(np.abs(expected["last"][key] - value).max() for key, value in before.items()) > 1e-2, "nothing moved"
    for result in results_of(layout):
        outcome = result[name]
        assert not isinstance(outcome, str), outcome
        assert outcome["steps"] == expected["steps"] == 14 * SCENARIOS[name].epochs
        for moment, tolerance in (("first", 1e-12), ("last", 1e-10)):
            for key, value in expected[moment].items():
                np.testing.assert_allclose(outcome[moment][key], value, rtol=0, atol=tolerance, err_msg=key)
