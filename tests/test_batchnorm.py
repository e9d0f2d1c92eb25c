"""BatchNorm in several processes: the synchronised form is that of one process, the plain one survives any slice."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ranks import RankFailure, run_groups
from rankwise.group import Group
from rankwise.modes.batchnorm import SynchronisedBatchNorm
from training import backward, data, gradients_of, micro_batches, open_parts, state_of

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "rows": lambda: nn.BatchNorm1d(6),
    "sequences": lambda: nn.BatchNorm1d(3),
    "images": lambda: nn.BatchNorm2d(3),
    "no momentum": lambda: nn.BatchNorm1d(6, momentum=None),
    "not affine": lambda: nn.BatchNorm1d(6, affine=False),
    "not tracked": lambda: nn.BatchNorm1d(6, track_running_stats=False),
    "torch's synchronised": lambda: nn.SyncBatchNorm(6),
}
BATCHES = [(0, 11), (11, 18), (18, 20)]   # the last one leaves two of four ranks without rows
SHAPES = {"sequences": (3, 2), "images": (3, 2, 1)}


class Net(nn.Module):
    """A linear layer, the BatchNorm under test, and a smooth head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.shape = SHAPES.get(kind, (6,))
        self.first, self.norm, self.head = nn.Linear(6, 6), LAYERS[kind](), nn.Linear(6, 2)
        if getattr(self.norm, "weight", None) is not None:
            nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = 3.0 + self.first(inputs).reshape(-1, *self.shape)
        return self.head(torch.tanh(self.norm(hidden)).reshape(-1, 6))


def steps_on_rank(group: Group, kind: str, batches: list[tuple[int, int]]) -> dict[str, Any]:
    mode, stepper = open_parts(group)
    model = mode.prepare(Net(kind), sync_batchnorm=True)
    assert isinstance(model.norm, SynchronisedBatchNorm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    inputs, _ = data(max(stop for _, stop in batches))
    outputs = []
    for start, stop in batches:
        for micro_batch, part in micro_batches(group.rank, group.size, start, stop):
            mode.expect(micro_batch)
            output = model(inputs[part])
            outputs.append(output.detach().numpy())
            backward(mode, stepper, output.square().sum(1).mean(), micro_batch)
        last_gradient = gradients_of(model)
        stepper.update([optimizer])
        mode.after_update()
    model.eval()
    evaluated = model(inputs).detach().numpy()
    mode.close()
    return {"outputs": outputs, "gradients": last_gradient, "state": state_of(model), "evaluated": evaluated}


def steps_of_one_process(kind: str, batches: list[tuple[int, int]]) -> dict[str, Any]:
    """The same in plain PyTorch."""
    model = Net(kind if kind != "torch's synchronised" else "rows")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    inputs, _ = data(max(stop for _, stop in batches))
    outputs = []
    for start, stop in batches:
        optimizer.zero_grad()
        output = model(inputs[start:stop])
        outputs.append(output.detach().numpy())
        output.square().sum(1).mean().backward()
        optimizer.step()
    gradients = gradients_of(model)
    model.eval()
    return {"outputs": outputs, "gradients": gradients, "state": state_of(model),
            "evaluated": model(inputs).detach().numpy()}


def all_kinds(group: Group) -> dict[str, dict[str, Any]]:
    return {kind: steps_on_rank(group, kind, BATCHES) for kind in LAYERS}


@functools.cache
def results_of(ranks: int) -> list[dict[str, dict[str, Any]]]:
    return run_groups(all_kinds, ranks)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_synchronised_is_that_of_one_process(ranks: int, kind: str) -> None:
    """Outputs, gradients, running statistics and evaluation are those of one process; slices ragged and empty."""
    expected = steps_of_one_process(kind, BATCHES)
    assert max(np.abs(gradient).max() for gradient in expected["gradients"]) > 1e-3
    results = [result[kind] for result in results_of(ranks)]
    for turn, output in enumerate(expected["outputs"]):
        everyone = np.concatenate([result["outputs"][turn] for result in results])
        np.testing.assert_allclose(everyone, output, rtol=0, atol=1e-12)
    for result in results:
        for ours, theirs in zip(result["gradients"], expected["gradients"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
        for name, value in expected["state"].items():
            np.testing.assert_allclose(result["state"][name], value, rtol=0, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(result["evaluated"], expected["evaluated"], rtol=0, atol=1e-12)


def tiny_slices(group: Group, kind: str) -> dict[str, Any]:
    """Three rows on two or four ranks: slices of two, one and no rows, BatchNorm not synchronised."""
    mode, stepper = open_parts(group)
    model = mode.prepare(Net(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, _ = data(3)
    for _ in range(3):
        for micro_batch, part in micro_batches(group.rank, group.size, 0, 3):
            mode.expect(micro_batch)
            backward(mode, stepper, model(inputs[part]).square().sum(1).mean(), micro_batch)
        stepper.update([optimizer])
        mode.after_update()
    mode.close()
    return state_of(model)


@pytest.mark.parametrize("kind", ["rows", "no momentum", "not tracked", "images"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_slices_of_one_and_no_rows(ranks: int, kind: str) -> None:
    """Plain BatchNorm takes slices of one and no rows; weights and buffers stay finite and equal on all ranks."""
    results = run_groups(tiny_slices, ranks, kind)
    before = state_of(Net(kind))
    assert any(np.abs(results[0][name] - value).max() > 1e-4 for name, value in before.items())
    for result in results:
        for name, value in results[0].items():
            assert np.isfinite(value).all(), name
            np.testing.assert_array_equal(result[name], value, err_msg=name)


def one_update(group: Group) -> dict[str, Any]:
    mode, stepper = open_parts(group)
    model = mode.prepare(Net("rows"))
    inputs, _ = data(7)
    for micro_batch, part in micro_batches(group.rank, group.size, 0, 7):
        mode.expect(micro_batch)
        backward(mode, stepper, model(inputs[part]).square().sum(1).mean(), micro_batch)
    stepper.update([torch.optim.SGD(model.parameters(), lr=0.1)])
    mode.after_update()
    mode.close()
    return state_of(model)


def test_running_statistics_are_the_mean_weighed_by_rows() -> None:
    """After an update running statistics are the mean of the slices' ones, weighed by their rows."""
    model, (inputs, _) = Net("rows"), data(7)
    slices = [slice(0, 2), slice(2, 4), slice(4, 7)]
    means, variances = [], []
    for part in slices:
        alone = copy.deepcopy(model)
        alone(inputs[part])
        means.append(alone.norm.running_mean.numpy())
        variances.append(alone.norm.running_var.numpy())
    for state in run_groups(one_update, 3):
        np.testing.assert_allclose(state["norm.running_mean"], np.average(means, 0, weights=[2, 2, 3]), atol=1e-12)
        np.testing.assert_allclose(state["norm.running_var"], np.average(variances, 0, weights=[2, 2, 3]), atol=1e-12)
        assert state["norm.num_batches_tracked"] == 1


def frozen_statistics(group: Group) -> bool:
    mode, stepper = open_parts(group)
    model = mode.prepare(Net("rows"))
    model.norm.eval()
    model.norm.running_mean.fill_(1 / 3)
    before = state_of(model.norm)
    inputs, _ = data(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for micro_batch, part in micro_batches(group.rank, group.size, 0, 7):
            mode.expect(micro_batch)
            backward(mode, stepper, model(inputs[part]).square().sum(1).mean(), micro_batch)
        stepper.update([optimizer])
        mode.after_update()
    mode.close()
    return all(np.array_equal(state_of(model.norm)[name], before[name]) for name in ("running_mean", "running_var"))


def test_frozen_statistics_stay_to_the_bit() -> None:
    """A BatchNorm in eval mode keeps its statistics to the last bit."""
    assert run_groups(frozen_statistics, 3) == [True, True, True]


class OwnForward(nn.BatchNorm1d):
    """A BatchNorm with an activation of its own."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(super().forward(inputs))


def synchronise_own_forward(group: Group) -> None:
    mode, _ = open_parts(group)
    mode.prepare(nn.Sequential(nn.Linear(6, 6), OwnForward(6)), sync_batchnorm=True)


def test_a_forward_of_its_own_is_refused() -> None:
    """sync_batchnorm names a BatchNorm whose class has its own forward."""
    with pytest.raises(RankFailure, match=r"`1` is a OwnForward"):
        run_groups(synchronise_own_forward, 2)


def copies_are_plain(group: Group) -> list[bool]:
    mode, _ = open_parts(group)
    model = mode.prepare(Net("rows"), sync_batchnorm=True)
    copied, thawed = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    mode.close()
    return [isinstance(model, Net), type(copied) is Net, type(copied.norm) is nn.BatchNorm1d, type(thawed) is Net,
            list(model.state_dict()) == list(Net("rows").state_dict())]


def test_copies_and_pickles_are_plain_modules() -> None:
    """A prepared module keeps its class and keys; a copy or pickle of it is of the plain class."""
    assert run_groups(copies_are_plain, 2) == [[True] * 5] * 2
