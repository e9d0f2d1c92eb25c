"""The modes: which one is meant, and what each of them does with modules."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from ranks import RankFailure, run_groups
from rankwise.errors import MisuseError, UsageError
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.modes import MODES, Mode, open_mode, resolve
from rankwise.modes.chunks import cut, join
from rankwise.settings import Settings
from rankwise.world import World
from training import backward, data, gradients_of, micro_batches, mlp, open_parts, state_of

# Choosing


@pytest.mark.parametrize(("mode", "devices", "processes", "meant"), [
    ("auto", None, 1, "single"), ("auto", 1, 1, "single"), ("auto", 3, 1, "ddp"), ("auto", None, 2, "ddp"),
    ("single", None, 1, "single"), ("dp", 4, 1, "dp"), ("ddp", 1, 1, "ddp")])
def test_resolve(mode: str, devices: int | None, processes: int, meant: str) -> None:
    """`auto` is single on one device and ddp on more; what was asked for is kept."""
    assert resolve(Settings(mode=mode, devices=devices), World(size=processes, local_size=processes)) == meant


@pytest.mark.parametrize(("mode", "devices", "processes"), [("single", 2, 1), ("single", None, 2), ("dp", 2, 2)])
def test_a_mode_that_does_not_fit_is_refused(mode: str, devices: int | None, processes: int) -> None:
    """One-process modes are refused with several processes, single with several devices."""
    with pytest.raises(UsageError, match=f"--mode is {mode}"):
        resolve(Settings(mode=mode, devices=devices), World(size=processes, local_size=processes))


def test_processes_of_modes() -> None:
    """single and dp take one process, ddp one for each device."""
    assert {name: description.processes(4) for name, description in MODES.items()} == {"single": 1, "dp": 1, "ddp": 4}


# Preparing


def single_mode(name: str = "single", devices: int = 1, amp: str = "no") -> Mode:
    return open_mode(name, group=Group(World(), torch.device("cpu")), devices=devices, amp=amp)


def test_prepare_keeps_the_object() -> None:
    """The same object comes back, with its attributes, its methods, its class and its keys, also the second time."""
    model = mlp()
    model.note = "mine"
    keys, mode = list(model.state_dict()), single_mode("dp", 2)
    assert mode.prepare(model) is model is mode.prepare(model)
    assert isinstance(model, nn.Sequential)
    assert type(model).__name__ == "Sequential"
    assert (model.note, list(model.state_dict())) == ("mine", keys)
    assert type(copy.deepcopy(model)) is nn.Sequential
    mode.close()


def test_options_are_checked() -> None:
    """An unknown option and a bucket without a size are refused."""
    with pytest.raises(MisuseError, match="Did you mean `find_unused`"):
        single_mode().prepare(mlp(), find_unusd=True)
    with pytest.raises(MisuseError, match="bucket_mb=0"):
        single_mode().prepare(mlp(), bucket_mb=0)


def different_modules(group: Group) -> str:
    mode, _ = open_parts(group)
    with pytest.raises(MisuseError) as caught:
        mode.prepare(nn.Sequential(nn.Linear(4, 4 + group.rank)))
    mode.close()
    return str(caught.value)


def test_different_modules_are_named() -> None:
    """Ranks that built different modules are told on every rank what differs."""
    for text in run_groups(different_modules, 2):
        assert "`0.weight` is [4, 4] float32 on rank 0 and [5, 4] float32 on rank 1" in text


def weights_after_prepare(group: Group) -> dict[str, Any]:
    torch.manual_seed(group.rank)
    mode, _ = open_parts(group)
    model = mode.prepare(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    frozen = mode.prepare(nn.Linear(2, 2).requires_grad_(False))
    ema = mode.prepare(AveragedModel(nn.Linear(2, 2)))
    mode.close()
    return {name: value for module in (model, frozen, ema) for name, value in state_of(module).items()}


def test_weights_are_equal_after_prepare() -> None:
    """Modules, frozen ones and EMA copies built with different seeds are rank 0's after prepare."""
    results = run_groups(weights_after_prepare, 3)
    for result in results:
        for name, value in results[0].items():
            np.testing.assert_array_equal(result[name], value, err_msg=name)


def test_notices() -> None:
    """BatchNorm and dropout are one line where the layout matters; dp says what it is for, once."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1))
    assert single_mode().notices(model) == []
    dp = single_mode("dp", 2)
    told = dp.notices(model)
    assert [len(told), len(dp.notices(model)), dp.notices(mlp())] == [2, 1, []]
    assert "to compare with" in told[0]
    assert "sync_batchnorm=True" in told[1]
    assert "dropout" in told[1]
    dp.close()


def test_dp_refuses_synchronised_batchnorm() -> None:
    """dp says which modes can synchronise BatchNorm."""
    with pytest.raises(MisuseError, match="--mode ddp"):
        single_mode("dp", 2).prepare(mlp(), sync_batchnorm=True)


# ddp


class Two(nn.Module):
    """Two heads, of which a loss may use one, and a method besides forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.trunk, self.left, self.right = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.double()

    def forward(self, inputs: torch.Tensor, side: str = "left") -> torch.Tensor:
        return getattr(self, side)(self.encode(inputs))

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.trunk(inputs))


def unused_head(group: Group) -> str:
    mode, stepper = open_parts(group)
    model = mode.prepare(Two())
    inputs, _ = data(4)
    with pytest.raises(MisuseError) as caught:
        backward(mode, stepper, model(inputs).square().mean(), MicroBatch(rows=4, global_rows=4 * group.size))
    mode.close()
    return str(caught.value)


def test_unused_parameters_are_named_in_the_first_step() -> None:
    """Without find_unused, parameters that got no gradient are named in the same step."""
    for text in run_groups(unused_head, 2):
        assert "right.weight, right.bias" in text
        assert "find_unused=True" in text


def by_method(group: Group, how: str) -> list[np.ndarray[Any, Any]]:
    """The reduced gradient of three rows, however the module was called."""
    mode, stepper = open_parts(group)
    model = mode.prepare(Two(), find_unused=True)
    inputs, _ = data(3)
    for micro_batch, part in micro_batches(group.rank, group.size, 0, 3):
        rows = inputs[part]
        if how == "method":
            backward(mode, stepper, model.left(model.encode(rows)).square().sum(1).mean(), micro_batch)
        elif how == "sides by rank":
            side = "left" if group.rank == 0 else "right"
            backward(mode, stepper, model(rows, side).square().sum(1).mean(), micro_batch)
        else:
            left, right = model(rows), model(rows, "right")
            backward(mode, stepper, left.square().sum(1).mean(), micro_batch)
            backward(mode, stepper, right.square().sum(1).mean(), micro_batch)
    result = gradients_of(model)
    mode.close()
    return result


@pytest.mark.parametrize("how", ["method", "sides by rank", "two losses"])
def test_gradients_are_reduced_however_the_module_is_called(how: str) -> None:
    """Methods, branches that differ between ranks, and two losses after two forwards give one process's gradient."""
    model, (inputs, _) = Two(), data(3)
    if how == "sides by rank":   # rank 0 has the first row, rank 1 the other two
        loss = (model(inputs[:1]).square().sum() + model(inputs[1:], "right").square().sum()) / 3
    else:
        loss = model(inputs).square().sum(1).mean()
        loss = loss + (model(inputs, "right").square().sum(1).mean() if how == "two losses" else 0.0)
    loss.backward()
    expected = gradients_of(model)
    assert np.abs(expected[0]).max() > 1e-3
    for result in run_groups(by_method, 2, how):
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


class Twice(nn.Module):
    """One layer that is used twice under reentrant activation checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.head = nn.Linear(6, 6).double(), nn.Linear(6, 2).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.clone().requires_grad_()
        for _ in range(2):
            hidden = checkpoint(self.layer, hidden, use_reentrant=True)
        return self.head(hidden)


def reentrant(group: Group, options: dict[str, Any]) -> Any:
    mode, stepper = open_parts(group)
    model = mode.prepare(Twice(), **options)
    for micro_batch, part in micro_batches(group.rank, group.size, 0, 7):
        try:
            backward(mode, stepper, model(data(7)[0][part]).square().sum(1).mean(), micro_batch)
        except MisuseError as error:
            return str(error)
    result = gradients_of(model)
    mode.close()
    return result


def test_reentrant_checkpointing() -> None:
    """A layer used twice under reentrant checkpointing is refused in the first step, and right in a static graph."""
    assert all("use_reentrant=False" in text for text in run_groups(reentrant, 2, {}))
    model = Twice()
    model(data(7)[0]).square().sum(1).mean().backward()
    for result in run_groups(reentrant, 2, {"static_graph": True}):
        for ours, theirs in zip(result, gradients_of(model), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def compiled(group: Group) -> Any:
    mode, stepper = open_parts(group)
    model = mode.prepare(torch.compile(mlp(), backend="eager"))
    for micro_batch, part in micro_batches(group.rank, group.size, 0, 7):
        backward(mode, stepper, model(data(7)[0][part]).square().sum(1).mean(), micro_batch)
    result = gradients_of(model)
    mode.close()
    return result


def test_compiled_module() -> None:
    """The gradients of a module from torch.compile are averaged as well."""
    model = mlp()
    model(data(7)[0]).square().sum(1).mean().backward()
    for result in run_groups(compiled, 2):
        for ours, theirs in zip(result, gradients_of(model), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def unfrozen_later(group: Group) -> list[list[np.ndarray[Any, Any]]]:
    """The gradients of three steps: all trainable, the first layer frozen, the last one frozen; two micro-batches."""
    mode, stepper = open_parts(group)
    model = mode.prepare(mlp())
    inputs, labels = data(7)
    steps = []
    for frozen in (None, 0, 2):
        for index in (0, 2):
            model[index].requires_grad_(index != frozen)
        for micro_batch, part in micro_batches(group.rank, group.size, 0, 7, bound=2):
            backward(mode, stepper, nn.functional.cross_entropy(model(inputs[part]), labels[part]), micro_batch)
        steps.append(gradients_of(model))
        model.zero_grad()
        stepper = open_parts(group)[1]
    mode.close()
    return steps


def test_layers_may_be_frozen_and_unfrozen() -> None:
    """Freezing and unfreezing layers after prepare reduces what is trainable then."""
    (inputs, labels), expected = data(7), []
    for frozen in (None, 0, 2):
        model = mlp()
        if frozen is not None:
            model[frozen].requires_grad_(False)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        expected.append(gradients_of(model))
    assert [len(gradients) for gradients in expected] == [4, 2, 2]
    for steps in run_groups(unfrozen_later, 3):
        for ours, theirs in zip(steps, expected, strict=True):
            for mine, plain in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(mine, plain, rtol=0, atol=1e-12)


def unfit_modules(group: Group) -> list[str]:
    mode, _ = open_parts(group)
    texts = []
    for module in (nn.LazyLinear(3), nn.Embedding(4, 2, sparse=True)):
        with pytest.raises(MisuseError) as caught:
            mode.prepare(module)
        texts.append(str(caught.value))
    mode.close()
    return texts


def test_modules_that_ranks_cannot_share_are_refused() -> None:
    """Parameters without a shape and sparse gradients are named at prepare."""
    for lazy, sparse in run_groups(unfit_modules, 2):
        assert "has no shape yet" in lazy
        assert "has sparse gradients" in sparse


def unknown_parameters(group: Group) -> str:
    mode, _ = open_parts(group)
    model = mode.prepare(mlp())
    mode.require_known_parameters([torch.optim.SGD(model.parameters(), lr=0.1)])
    with pytest.raises(MisuseError) as caught:
        mode.require_known_parameters([torch.optim.SGD(mlp().parameters(), lr=0.1)])
    mode.close()
    return str(caught.value)


def test_parameters_of_no_prepared_module_are_refused() -> None:
    """An optimizer over parameters that no rank reduces is refused."""
    assert all("holds parameters of no prepared module" in text for text in run_groups(unknown_parameters, 2))


def wide() -> nn.Module:
    """A network of more than 1 MiB, torch's size of the first bucket."""
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 30_000), nn.Linear(30_000, 2)).double()


def bucket_layouts(group: Group) -> list[Any]:
    mode, stepper = open_parts(group)
    model = mode.prepare(wide(), bucket_mb=1)
    inputs, _ = data(8)
    layouts = [mode.layout()]
    for _ in range(3):
        backward(mode, stepper, model(inputs).square().mean(), MicroBatch(rows=8, global_rows=8 * group.size))
        stepper.update([torch.optim.SGD(model.parameters(), lr=0.1)])
        layouts.append(mode.layout())
    mode.close()
    return layouts


def test_buckets_are_fixed_from_the_first_step() -> None:
    """The layout of buckets is that of prepare in every later step, has several buckets, and is the same everywhere."""
    results = run_groups(bucket_layouts, 2)
    layouts = [layout for result in results for layout in result]
    assert all(layout == layouts[0] for layout in layouts)
    assert sum(layouts[0]["bucket_bytes"][0]) == 8 * sum(parameter.numel() for parameter in wide().parameters())
    assert len(layouts[0]["bucket_bytes"][0]) > 1


class Picky(nn.Module):
    """Cannot compute zero rows: attention under a mask, and a view that asks for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.BatchNorm1d(6), nn.MultiheadAttention(2, 1, batch_first=True)
        self.last, self.inner = nn.Linear(6, 3), nn.BatchNorm1d(3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        pairs = self.norm(rows).view(len(rows), 3, 2)
        mixed, _ = self.attention(pairs, pairs, pairs, key_padding_mask=torch.zeros(len(rows), 3, dtype=torch.bool))
        return self.inner(self.last(mixed.reshape(len(rows), -1)))


def picky() -> Picky:
    torch.manual_seed(5)
    return Picky().double()


def picky_on_rank(group: Group, synchronised: bool) -> tuple[dict[str, Any], list[Any], tuple[int, ...]]:
    mode, stepper = open_parts(group)
    model = mode.prepare(picky(), sync_batchnorm=synchronised)
    inputs, labels = data(2)
    for micro_batch, part in micro_batches(group.rank, group.size, 0, 2):
        mode.expect(micro_batch)
        backward(mode, stepper, nn.functional.cross_entropy(model(inputs[part]), labels[part]), micro_batch)
    gradients = gradients_of(model)
    mode.after_update()
    state = state_of(model)
    shape = tuple(model.eval()(inputs[:0]).shape)
    mode.close()
    return state, gradients, shape


@pytest.mark.parametrize("synchronised", [True, False])
def test_a_module_that_cannot_take_zero_rows(synchronised: bool) -> None:
    """A rank without rows gets outputs of zero rows, and takes part in the others' gradients and statistics."""
    results = run_groups(picky_on_rank, 3, synchronised)
    for state, gradients, shape in results:
        assert shape == (0, 3)
        assert len(gradients) == len(list(picky().parameters()))
        for name, value in state.items():
            np.testing.assert_allclose(value, results[0][0][name], rtol=0, atol=1e-15, err_msg=name)
        for gradient, first in zip(gradients, results[0][1], strict=True):
            np.testing.assert_array_equal(gradient, first)
    if synchronised:
        plain = picky()
        inputs, labels = data(2)
        nn.functional.cross_entropy(plain(inputs), labels).backward()
        for gradient, expected in zip(results[0][1], gradients_of(plain), strict=True):
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12)
        for name, value in state_of(plain).items():
            np.testing.assert_allclose(results[0][0][name], value, rtol=0, atol=1e-12, err_msg=name)


class Counting(nn.Module):
    """A model with a buffer that ranks change differently, one that is constant, and a whole-number one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1).double()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.rand(5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += inputs.detach().abs().sum()
        self.calls = self.calls + len(inputs)
        return self.linear(inputs)


def buffers_after_updates(group: Group) -> dict[str, Any]:
    mode, stepper = open_parts(group)
    model = mode.prepare(Counting())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, _ = data(5)
    table = model.table.clone()
    for _ in range(3):
        for micro_batch, part in micro_batches(group.rank, group.size, 0, 5):
            mode.expect(micro_batch)
            backward(mode, stepper, model(inputs[part]).square().mean(), micro_batch)
        stepper.update([optimizer])
        mode.after_update()
    assert torch.equal(model.table, table)
    mode.close()
    return state_of(model)


def test_buffers_are_those_of_rank_0() -> None:
    """Buffers that change are rank 0's on all ranks after each update; constants stay."""
    results = run_groups(buffers_after_updates, 2)
    assert results[0]["calls"] == 6   # rank 0 has two of five rows, three times
    assert results[0]["seen"][0] > 0
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


# dp

Pair = namedtuple("Pair", "logits loss")


@dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor]
    name: str = "net"


class Kinds(nn.Module):
    """Gives its output in the container asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear = nn.Linear(6, 3).double()

    def forward(self, inputs: torch.Tensor, kind: str) -> Any:
        logits = self.linear(inputs)
        loss = logits.square().mean()
        return {"tensor": logits, "tuple": (logits, loss), "dict": {"logits": logits, "n": None},
                "namedtuple": Pair(logits, loss), "dataclass": Output(logits, [logits, 2 * logits]),
                "strings": (logits, [f"row {value:.3f}" for value in inputs[:, 0].tolist()]),
                "set": {1}, "count": torch.tensor(len(inputs))}[kind]


def flat(value: Any) -> list[Any]:
    """The leaves of a structure, tensors as arrays."""
    if isinstance(value, torch.Tensor):
        return [value.detach().numpy()]
    if isinstance(value, Output):
        return flat([value.logits, value.hidden, value.name])
    if isinstance(value, (tuple, list)):
        return [leaf for member in value for leaf in flat(member)]
    return flat(list(value.values())) if isinstance(value, dict) else [value]


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "namedtuple", "dataclass", "strings"])
@pytest.mark.parametrize("rows", [7, 2, 1, 0])
def test_dp_outputs(kind: str, rows: int) -> None:
    """Outputs of every kind are those of one forward, for ragged chunks, fewer rows than devices, and none."""
    mode, inputs = single_mode("dp", 3), data(7)[0][:rows]
    expected, ours = Kinds()(inputs, kind), mode.prepare(Kinds())(inputs, kind=kind)
    assert type(ours) is type(expected)
    for mine, theirs in zip(flat(ours), flat(expected), strict=True):
        if isinstance(theirs, np.ndarray):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
        else:
            assert mine == theirs
    mode.close()


@pytest.mark.parametrize(("kind", "what"), [("set", "`output`: it is a set"), ("count", "0-dim tensor of integers")])
def test_dp_names_what_it_cannot_put_together(kind: str, what: str) -> None:
    """An output that cannot be put together is named."""
    mode = single_mode("dp", 2)
    model = mode.prepare(Kinds())
    with pytest.raises(MisuseError, match=what):
        model(data(4)[0], kind)
    mode.close()


def test_join_names_the_place() -> None:
    """The message says where in the output the value lies."""
    with pytest.raises(MisuseError, match=r"`output\['stats'\]\[1\]`"):
        join([{"stats": (1, {2})}, {"stats": (1, {2})}], [1, 1])


def test_cut() -> None:
    """Tensors and lists with a value for each row are cut; other things go to every chunk whole."""
    rows, table = torch.arange(5), torch.eye(3)
    chunks, sizes = cut(((rows, table, list("abcde")), {"scale": torch.tensor(2.0)}), 2)
    assert sizes == [2, 3]
    assert [args[0].tolist() for args, _ in chunks] == [[0, 1], [2, 3, 4]]
    assert [args[2] for args, _ in chunks] == [["a", "b"], ["c", "d", "e"]]
    assert all(args[1] is table and float(kwargs["scale"]) == 2.0 for args, kwargs in chunks)


def test_dp_gradients_and_buffers() -> None:
    """The gradient is that of one forward; buffers and attributes of the first chunk persist; no_grad is kept."""
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = mlp(), nn.BatchNorm1d(6).double()
            self.graded: list[bool] = []

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.graded.append(torch.is_grad_enabled())
            self.norm(inputs)
            return self.linear(inputs)

    mode, (inputs, _) = single_mode("dp", 3), data(7)
    model, plain = mode.prepare(Net()), mlp()
    model(inputs).square().mean().backward()
    plain(inputs).square().mean().backward()
    for ours, theirs in zip(gradients_of(model.linear), gradients_of(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.norm.running_mean.numpy(), 0.1 * inputs[:2].mean(0).numpy(), atol=1e-12)
    with torch.no_grad():
        model(inputs)
    assert model.graded == [True] * 3 + [False] * 3
    mode.close()
    assert len(model(inputs)) == 7   # still usable


def test_dp_error_names_the_chunk() -> None:
    """An exception in a chunk says which one it was, and keeps its cause."""
    class Picky(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if (inputs == 6).any():
                raise ValueError("no sixes")
            return inputs

    mode = single_mode("dp", 3)
    model = mode.prepare(Picky())
    with pytest.raises(RuntimeError, match="Chunk 3 of 3 failed in the forward of Picky: no sixes") as caught:
        model(torch.arange(7.0))
    assert isinstance(caught.value.__cause__, ValueError)
    mode.close()


# Mixed precision


@pytest.mark.parametrize(("name", "devices"), [("single", 1), ("dp", 2)])
def test_autocast(name: str, devices: int) -> None:
    """Under bf16 a module computes in bfloat16, its outputs are float32, its weights stay; a copy is full precision."""
    seen: list[torch.dtype] = []
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    mode = single_mode(name, devices, amp="bf16")
    mode.prepare(model)
    inputs = data(4)[0].float()
    assert model(inputs).dtype == torch.float32
    assert set(seen) == {torch.bfloat16}
    assert model[0].weight.dtype == torch.float32
    seen.clear()
    copy.deepcopy(model)(inputs)
    assert seen == [torch.float32]
    mode.close()


def fails_on_one_rank(group: Group) -> None:
    mode, stepper = open_parts(group)
    model = mode.prepare(Two())
    loss = model(data(2)[0]).square().mean()
    backward(mode, stepper, loss, MicroBatch(rows=2, global_rows=4))


def test_an_unused_parameter_ends_the_run() -> None:
    """The message reaches the harness as the failure of a rank."""
    with pytest.raises(RankFailure, match=r"right\.weight"):
        run_groups(fails_on_one_rank, 2)
