"""The step: its gradients are those of one process over the global batch, and misuse of it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ranks import run_groups
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.world import World
from training import backward, data, gradients_of, micro_batches, mlp, open_parts

RAGGED = 13   # a global batch that 2, 3 and 4 ranks cannot cut evenly
FEW = 3       # fewer rows than 4 ranks
WHOLE = MicroBatch(rows=4, global_rows=4)


def one_rank() -> Group:
    return Group(World(), torch.device("cpu"))


def weights_of(labels: torch.Tensor) -> torch.Tensor:
    """Uneven loss weights: class 0 counts nothing, the others 1 and 2.5."""
    return torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)[labels]


def gradient_on_rank(group: Group, rows: int, bound: int | None, kind: str) -> list[np.ndarray[Any, Any]]:
    """The gradient of one global batch, by the modes and the stepper."""
    mode, stepper = open_parts(group)
    model = mode.prepare(mlp())
    inputs, labels = data(rows)
    for micro_batch, part in micro_batches(group.rank, group.size, 0, rows, bound):
        logits, targets = model(inputs[part]), labels[part]
        each = F.cross_entropy(logits, targets, reduction="none")
        weight = weights_of(targets)
        loss, options = {
            "mean": (F.cross_entropy(logits, targets), {}),
            "sum": (each.sum(), {"reduction": "sum"}),
            "weighted mean": (F.cross_entropy(logits, targets, weight=weights_of(torch.arange(3))),
                              {"weight": weight.sum()}),
            "weighted sum": ((each * weight).sum(), {"weight": float(weight.sum()), "reduction": "sum"}),
        }[kind]
        backward(mode, stepper, loss, micro_batch, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert stepper.update([optimizer])
    after = list(model.parameters())
    mode.close()
    return [(old - new).detach().numpy() for old, new in zip(before, after, strict=True)]   # lr 1: the gradient


def gradient_of_one_process(rows: int, kind: str) -> list[np.ndarray[Any, Any]]:
    """The same gradient in plain PyTorch."""
    model = mlp()
    inputs, labels = data(rows)
    each = F.cross_entropy(model(inputs), labels, reduction="none")
    weight = weights_of(labels) if kind.startswith("weighted") else torch.ones(rows, dtype=torch.float64)
    loss = each.sum() if kind == "sum" else (each * weight).sum() / weight.sum()
    loss.backward()
    return gradients_of(model)


@pytest.mark.parametrize("kind", ["mean", "sum", "weighted mean", "weighted sum"])
@pytest.mark.parametrize(("ranks", "rows", "bound"), [
    (1, RAGGED, None), (1, RAGGED, 4), (2, RAGGED, None), (3, RAGGED, 2), (4, RAGGED, 3), (4, FEW, None)])
def test_gradient_is_that_of_one_process(ranks: int, rows: int, bound: int | None, kind: str) -> None:
    """Ragged slices, empty slices and accumulation give the gradient of the global batch, for every kind of loss."""
    expected = gradient_of_one_process(rows, kind)
    assert max(np.abs(gradient).max() for gradient in expected) > 1e-3
    for result in run_groups(gradient_on_rank, ranks, rows, bound, kind):
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
