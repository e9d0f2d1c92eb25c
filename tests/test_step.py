"""The step: its gradients are those of one process over the global batch, and misuse of it is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from ranks import run_groups, run_ranks
from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.step import Stepper
from rankwise.world import World
from training import backward, data, gradients_of, micro_batches, mlp, open_parts, state_of

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


# Misuse


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Stepper]:
    model = mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), Stepper(one_rank())


@pytest.mark.parametrize(("loss", "what"), [
    (lambda out: out, r"a tensor of shape \[4, 3\]"), (lambda out: 1.5, "The loss is float"),
    (lambda out: out.mean().detach(), "no gradient")])
def test_a_loss_that_is_none_is_refused(loss: Any, what: str) -> None:
    """What is not a 0-dim tensor with a gradient is named."""
    model, _, stepper = parts()
    with pytest.raises(MisuseError, match=what):
        stepper.weigh(loss(model(data(4)[0])), WHOLE)


@pytest.mark.parametrize(("options", "what"), [
    ({"weight": torch.ones(2)}, r"of shape \[2\]"), ({"weight": "many"}, "of type str"),
    ({"reduction": "none"}, "reduction is 'none'")])
def test_options_of_a_loss_are_checked(options: dict[str, Any], what: str) -> None:
    """A weight that is no number and an unknown reduction are named."""
    model, _, stepper = parts()
    with pytest.raises(MisuseError, match=what):
        stepper.weigh(model(data(4)[0]).mean(), WHOLE, **options)


def test_weighted_and_unweighted_losses_do_not_mix() -> None:
    """One step has losses with weight= or without, and one weighted loss a micro-batch."""
    model, _, stepper = parts()
    stepper.weigh(model(data(4)[0]).mean(), WHOLE)
    with pytest.raises(MisuseError, match="losses without it"):
        stepper.weigh(model(data(4)[0]).mean(), WHOLE, weight=3)
    _, _, stepper = parts()
    stepper.weigh(model(data(4)[0]).mean(), WHOLE, weight=3)
    with pytest.raises(MisuseError, match="two losses with weight="):
        stepper.weigh(model(data(4)[0]).mean(), WHOLE, weight=3)


def test_update_needs_a_backward() -> None:
    """An update without a backward of ours before it, and a second one of the same optimizer, are refused."""
    model, optimizer, stepper = parts()
    model(data(4)[0]).mean().backward()
    with pytest.raises(MisuseError, match=r"no run\.backward went before"):
        stepper.update([optimizer])
    loss = model(data(4)[0]).mean()
    loss.backward(stepper.weigh(loss, WHOLE).seed)
    assert stepper.update([optimizer])
    with pytest.raises(MisuseError, match=r"no run\.backward went before"):
        stepper.update([optimizer])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_while_accumulating_is_refused(set_to_none: bool) -> None:
    """Clearing gradients between the micro-batches of one global batch is named; after an update it is harmless."""
    model, optimizer, stepper = parts()
    first = MicroBatch(rows=2, global_rows=4, is_last=False)
    optimizer.zero_grad()
    loss = model(data(2)[0]).mean()
    loss.backward(stepper.weigh(loss, first).seed)
    stepper.hold([optimizer])
    assert stepper.is_accumulating
    optimizer.zero_grad(set_to_none=set_to_none)
    with pytest.raises(MisuseError, match="zero_grad"):
        stepper.weigh(model(data(2)[0]).mean(), MicroBatch(rows=2, global_rows=4, is_first=False))


def two_models() -> tuple[list[nn.Module], list[torch.optim.Optimizer], Stepper]:
    models = [mlp(), nn.Linear(3, 1).double()]
    return models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models], Stepper(one_rank())


def go_backward(stepper: Stepper, loss: torch.Tensor, share: MicroBatch) -> None:
    loss.backward(stepper.weigh(loss, share).seed)


def test_a_gradient_left_by_another_loss_is_refused() -> None:
    """A loss that reaches two models and updates one leaves the other's gradient, which its next update would use."""
    (maker, judge), (first, second), stepper = two_models()
    for _ in range(2):
        go_backward(stepper, judge(maker(data(4)[0]).detach()).mean(), WHOLE)
        assert stepper.update([second])
        go_backward(stepper, judge(maker(data(4)[0])).mean(), WHOLE)
        assert stepper.update([first])
        judge.zero_grad()
    go_backward(stepper, judge(maker(data(4)[0])).mean(), WHOLE)
    assert stepper.update([first])
    go_backward(stepper, judge(maker(data(4)[0]).detach()).mean(), WHOLE)
    with pytest.raises(MisuseError, match="began with a gradient"):
        stepper.update([second])


def test_held_gradients_outlive_the_update_of_another_optimizer() -> None:
    """Several losses a micro-batch are fine; clearing what one of two optimizers holds is named, also after the other
    one's update."""
    (maker, judge), (first, second), stepper = two_models()
    parts_of_batch = [MicroBatch(rows=2, global_rows=4, is_last=False),
                      MicroBatch(rows=2, global_rows=4, is_first=False)]
    for share in parts_of_batch:
        for _ in range(2):
            go_backward(stepper, judge(maker(data(2)[0]).detach()).mean(), share)
        if share.is_last:
            assert stepper.update([second])
            assert stepper.is_accumulating
            maker.zero_grad()
            with pytest.raises(MisuseError, match="changed in the middle"):
                stepper.weigh(maker(data(2)[0]).mean(), share)
        else:
            stepper.hold([second])
            go_backward(stepper, maker(data(2)[0]).mean(), share)
            stepper.hold([first])


def step_by_hand(run: Any) -> tuple[str, str]:
    model = run.prepare(mlp())
    optimizers = torch.optim.SGD(model.parameters(), lr=0.1), run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(MisuseError) as unknown:
        run.step(model(data(4)[0]).mean(), optimizers[0])
    with pytest.raises(MisuseError) as by_hand:
        optimizers[1].step()
    return str(unknown.value), str(by_hand.value)


def test_an_optimizer_belongs_to_the_run() -> None:
    """run.step refuses an optimizer that was not prepared, and a prepared one refuses to step without the run."""
    for unknown, by_hand in run_ranks(step_by_hand, 2):
        assert "that was not prepared" in unknown
        assert "step() of a prepared SGD" in by_hand


def step_without_the_rest(run: Any) -> list[str]:
    model = run.prepare(nn.Linear(2, 1))
    said = []
    for loss in (model(torch.ones(1, 2)).sum(), lambda batch: model(batch).sum()):
        with pytest.raises(MisuseError) as refused:
            run.step(loss)
        said.append(refused.value.given)
    return said


def test_a_step_without_an_optimizer_is_refused() -> None:
    """A loss alone, and a function of a batch alone, are refused with what belongs there."""
    assert run_ranks(step_without_the_rest, 1) == [["run.step was given 0 things after the loss."] * 2]


def test_a_step_clears_gradients() -> None:
    """After an update no gradient is left, and nothing is being accumulated."""
    model, optimizer, stepper = parts()
    loss = model(data(4)[0]).mean()
    loss.backward(stepper.weigh(loss, WHOLE).seed)
    assert stepper.is_accumulating
    stepper.update([optimizer])
    assert gradients_of(model) == []
    assert not stepper.is_accumulating


# Amounts


@pytest.mark.parametrize(("rows", "options", "amount"), [
    (3, {}, 3.0), (0, {}, 0.0), (3, {"weight": 7}, 7.0), (0, {"weight": 7}, 0.0), (3, {"weight": torch.tensor(2)}, 2.0),
    (3, {"reduction": "sum"}, 3.0)])
def test_amount(rows: int, options: dict[str, Any], amount: float) -> None:
    """A loss counts its rows or its weight in a mean; without rows it counts nothing."""
    model, _, stepper = parts()
    weighed = stepper.weigh(model(data(4)[0]).mean(), MicroBatch(rows=rows, global_rows=4), **options)
    assert float(weighed.amount) == amount
    assert weighed.may_be_empty or rows > 0


def not_a_number(group: Group) -> list[np.ndarray[Any, Any]]:
    """Rank 1 has no rows, and its loss divides by their number."""
    mode, stepper = open_parts(group)
    model = mode.prepare(mlp())
    rows = 4 if group.rank == 0 else 0
    output = model(data(4)[0][:rows])
    loss = (output.square().sum() + model(data(2)[0]).sum()) / torch.tensor(float(rows))
    backward(mode, stepper, loss, MicroBatch(rows=rows, global_rows=4))
    result = gradients_of(model)
    mode.close()
    return result


def test_a_rank_without_rows_adds_exact_zeros() -> None:
    """A loss that is not a number because a rank has no rows leaves the other ranks' gradient as it is."""
    model = mlp()
    ((model(data(4)[0]).square().sum() + model(data(2)[0]).sum()) / 4).backward()
    for result in run_groups(not_a_number, 2):
        for ours, theirs in zip(result, gradients_of(model), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


class EpochLosses:
    """A sink that keeps them."""

    def __init__(self) -> None:
        self.of_epochs: list[float] = []

    def open(self, folder: Path, step: int) -> None:
        pass

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        if "epoch_loss" in values:
            self.of_epochs.append(values["epoch_loss"])

    def close(self) -> None:
        pass


def use_a_weight_again(run: Any) -> tuple[list[np.ndarray[Any, Any]], list[float]]:
    """One global batch whose weights all stand in the same tensor, which is overwritten after each run.step."""
    model = run.prepare(mlp())
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    weight, losses = torch.zeros((), dtype=torch.float64), EpochLosses()
    run.sinks[:] = [losses]
    for _ in run.epochs(1):
        for inputs, labels in run.loader(TensorDataset(*data(RAGGED)), RAGGED):
            each = weights_of(labels)
            weight.copy_(each.sum())
            loss = (F.cross_entropy(model(inputs), labels, reduction="none") * each).sum() / each.sum()
            run.step(loss, optimizer, weight=weight)
            weight.fill_(1e3)
    gradient = [(old - new).detach().numpy() for old, new in zip(before, model.parameters(), strict=True)]
    return gradient, losses.of_epochs


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_weight_whose_memory_is_used_again_keeps_its_value(ranks: int) -> None:
    """A weight tensor that the loop overwrites after run.step counts as it was: in the gradient and in the log."""
    expected = gradient_of_one_process(RAGGED, "weighted mean")
    inputs, labels = data(RAGGED)
    loss = F.cross_entropy(mlp()(inputs), labels, weight=weights_of(torch.arange(3))).item()
    results = run_ranks(use_a_weight_again, ranks, micro_batch=3)
    for gradient, _ in results:
        for ours, theirs in zip(gradient, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert results[0][1] == [pytest.approx(loss, rel=1e-12)]


# Several models and optimizers


def adversaries() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(9)
    return (nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double(),
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double())


def adversarial_losses(maker: nn.Module, judge: nn.Module, rows: torch.Tensor) -> Any:
    """The judge's loss, and then, when the judge was updated, the maker's."""
    made = maker(rows)
    yield F.softplus(-judge(rows)).mean() + F.softplus(judge(made.detach())).mean()
    yield F.softplus(-judge(made)).mean()


def adversarial_on_rank(group: Group) -> list[dict[str, Any]]:
    mode, stepper = open_parts(group)
    maker, judge = (mode.prepare(model) for model in adversaries())
    optimizers = [torch.optim.SGD(model.parameters(), 0.3) for model in (judge, maker)]
    inputs, _ = data(20)
    for start, stop in [(0, 7), (7, 10), (10, 20)]:
        for micro_batch, part in micro_batches(group.rank, group.size, start, stop):
            losses = adversarial_losses(maker, judge, inputs[part])
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizers[0].zero_grad()
                backward(mode, stepper, loss, micro_batch)
                assert stepper.update([optimizer])
                mode.after_update()
    mode.close()
    return [state_of(maker), state_of(judge)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_several_models_and_optimizers(ranks: int) -> None:
    """Two models that are updated in turn, one loss reaching both, end where one plain process ends."""
    maker, judge = adversaries()
    before = state_of(judge)
    optimizers = [torch.optim.SGD(model.parameters(), 0.3) for model in (judge, maker)]
    inputs, _ = data(20)
    for start, stop in [(0, 7), (7, 10), (10, 20)]:
        losses = adversarial_losses(maker, judge, inputs[start:stop])
        for optimizer, loss in zip(optimizers, losses, strict=True):
            maker.zero_grad()
            judge.zero_grad()
            loss.backward()
            optimizer.step()
    assert max(np.abs(state_of(judge)[name] - value).max() for name, value in before.items()) > 1e-3
    for result in run_groups(adversarial_on_rank, ranks):
        for ours, plain in zip(result, (maker, judge), strict=True):
            for name, value in state_of(plain).items():
                np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-12, err_msg=name)


# Mixed precision


def overflowing(group: Group) -> list[Any]:
    """fp16 steps; in the second one rank 0's loss overflows. After each: updated, weights, scale."""
    mode, stepper = open_parts(group, amp="fp16")
    model = mode.prepare(mlp().float())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = data(8)[0].float()
    seen = []
    for step in range(3):
        for micro_batch, part in micro_batches(group.rank, group.size, 0, 8):
            loss = model(inputs[part]).square().mean() * (1e38 if step == 1 and group.rank == 0 else 1.0)
            backward(mode, stepper, loss, micro_batch)
        updated = stepper.update([optimizer], clip_norm=1.0)
        seen.append((updated, state_of(model)["0.weight"], stepper.state_dict()["scale"]))
    mode.close()
    return seen


@pytest.mark.parametrize("ranks", [1, 2])
def test_fp16_skips_on_all_ranks(ranks: int) -> None:
    """Where one rank overflows, all ranks skip the update, keep the weights and halve the scale; then they go on."""
    for seen in run_groups(overflowing, ranks):
        assert [updated for updated, _, _ in seen] == [True, False, True]
        (_, first, scale), (_, second, halved), (_, third, kept) = seen
        np.testing.assert_array_equal(first, second)
        assert np.abs(third - second).max() > 1e-5
        assert halved == kept == scale / 2


def low_precision(group: Group, amp: str) -> list[dict[str, Any]]:
    mode, stepper = open_parts(group, amp=amp)
    model = mode.prepare(mlp().float())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = data(60)
    for start in range(0, 60, 7):
        for micro_batch, part in micro_batches(group.rank, group.size, start, min(start + 7, 60)):
            backward(mode, stepper, F.cross_entropy(model(inputs[part].float()), labels[part]), micro_batch)
        stepper.update([optimizer])
    mode.close()
    return [state_of(model)]


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_mixed_precision_follows_plain_autocast(ranks: int, amp: str) -> None:
    """Nine steps in mixed precision stay near those of plain autocast in one process."""
    model = mlp().float()
    before = state_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = data(60)
    for start in range(0, 60, 7):
        optimizer.zero_grad()
        with torch.autocast("cpu", {"bf16": torch.bfloat16, "fp16": torch.float16}[amp]):
            output = model(inputs[start:start + 7].float())
        F.cross_entropy(output.float(), labels[start:start + 7]).backward()
        optimizer.step()
    moved = max(np.abs(state_of(model)[name] - value).max() for name, value in before.items())
    assert moved > 0.05
    for (state,) in run_groups(low_precision, ranks, amp):
        for name, value in state_of(model).items():
            np.testing.assert_allclose(state[name], value, rtol=0, atol=0.02 * moved, err_msg=name)
