"""`--debug`: collectives that differ between ranks are told before they run, with the places they were called from."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from launches import RANKWISE, TORCHRUN, Ended, run
from ranks import run_groups
from rankwise.collectives import compared
from rankwise.collectives.calls import Call, call_of
from rankwise.errors import RankwiseError, UsageError
from rankwise.group import Group
from rankwise.settings import Settings

LIMIT_SECONDS = 3.0


def told(function: Callable[[Group], Any], world_size: int = 2) -> list[str]:
    """What each rank raised, '' where it did not."""
    return run_groups(_told, world_size, function)


def _told(group: Group, function: Callable[[Group], Any]) -> str:
    try:
        with compared(LIMIT_SECONDS):
            function(group)
    except RankwiseError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def line(function: Callable[..., Any], text: str) -> str:
    """Where `text` stands in a function, as the messages name it: the last of its lines that has it."""
    lines, first = inspect.getsourcelines(function)
    number = max(n for n, each in enumerate(lines) if text in each)
    return f"test_collectives.py:{first + number} in {function.__name__}"


def require(messages: list[str], *parts: str) -> None:
    for message in messages:
        for part in parts:
            assert part in message, message


# Faults


def swapped(group: Group) -> None:
    loss, accuracy = torch.tensor([2.0]), torch.tensor([0.5])

    def share_loss() -> None:
        dist.all_reduce(loss)

    def share_accuracy() -> None:
        dist.all_reduce(accuracy)

    for share in (share_loss, share_accuracy) if group.rank == 0 else (share_accuracy, share_loss):
        share()


def test_two_collectives_of_equal_size_in_swapped_order() -> None:
    """The case that torch's own check misses: every rank names both calls and both places."""
    messages = told(swapped)
    require(messages, "MisuseError: Ranks 0 and 1 call the same collectives in another order",
            "Collective 1: rank 0 called all_reduce SUM float32 [1] at", "in share_loss", "in share_accuracy",
            "Collective 2: rank 0 called", "test_collectives.py:")
    assert messages[0] == messages[1]


def from_a_set(group: Group) -> None:
    def share(value: torch.Tensor) -> None:
        dist.all_reduce(value)

    def share_all(names: list[str]) -> None:
        for name in names:
            if name == "loss":
                share(torch.ones(1))   # of the loss
            if name == "accuracy":
                share(torch.ones(1))   # of the accuracy
            if name == "norm":
                share(torch.ones(1))

    names = ["loss", "accuracy", "norm"]
    share_all(names if group.rank < 2 else names[1:] + names[:1])


def test_the_callers_tell_calls_of_one_helper_apart() -> None:
    """A helper's line is the same for all; three calls in a circle on the last of three ranks are told by callers."""
    messages = told(from_a_set, 3)
    require(messages, "Ranks 0 and 2 call the same collectives in another order", "in share, called from ",
            "Collective 1:", "Collective 3:")


def branches_that_are_fine(group: Group) -> list[float]:
    """The usual code of `if rank == 0`, and roots that take turns."""
    shared = torch.full((1,), float(group.rank))
    for _ in range(3):
        for source in range(group.size):
            value = torch.full((1,), float(source)) if group.rank == source else torch.zeros(1)
            if group.rank == source:
                dist.broadcast(value, source)
            else:
                dist.broadcast(value, source)
            shared += value
        if group.rank == 0:
            dist.barrier()
        if group.rank != 0:
            dist.barrier()
        if group.rank == 0:
            dist.all_reduce(shared)
        else:
            dist.all_reduce(shared)
    one_helper_called_alike = [torch.ones(1), torch.ones(2)]
    for tensor in one_helper_called_alike:
        dist.all_reduce(tensor)
    return shared.tolist()


def test_branches_by_rank_are_fine() -> None:
    """The same collective from the two branches of an `if` is no fault, in whatever order it repeats."""
    assert told(branches_that_are_fine, 3) == ["", "", ""]


def from_two_places(group: Group) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())   # type: ignore[method-assign]
    logger = logging.getLogger("rankwise")
    logger.addHandler(handler)
    with compared(LIMIT_SECONDS):
        for _ in range(2):
            if group.rank == 0:
                dist.all_reduce(torch.ones(1))
            else:
                dist.all_reduce(torch.zeros(1))   # of the others
    logger.removeHandler(handler)
    return said


def test_places_whose_values_are_mixed_are_told_once() -> None:
    """What may be meant and may be a fault is said by rank 0, with both places, and goes on."""
    first, second = run_groups(from_two_places, 2)
    assert second == []
    require(first, "collective 1: rank 0 calls all_reduce", line(from_two_places, "# of the others"))
    assert len(first) == 1


def within_a_part(group: Group) -> None:
    ends = dist.new_group([0, 2])
    if group.rank != 1:
        dist.all_reduce(torch.ones(1), group=ends)
        dist.broadcast(torch.ones(1), group_src=1, group=ends)
        dist.all_reduce(torch.ones(1 + group.rank), group=ends)


def test_a_group_of_some_ranks() -> None:
    """Calls are counted and compared in each group by itself, and ranks are named by their number in the world."""
    first, other, last = told(within_a_part, 3)
    assert other == ""
    require([first, last], "Ranks 0 and 2 call different things as collective 3 of the group of ranks 0 and 2",
            "float32 [1]", "float32 [3]")


def another_operation(group: Group) -> None:
    value = torch.ones(4)
    if group.rank == 0:
        dist.all_reduce(value)
    else:
        dist.broadcast(value, 0)


def another_shape(group: Group) -> None:
    dist.all_reduce(torch.ones(4 if group.rank == 0 else 3))


def another_dtype(group: Group) -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float32 if group.rank == 0 else torch.int32))


def another_reduction(group: Group) -> None:
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if group.rank == 0 else dist.ReduceOp.SUM)


def another_root(group: Group) -> None:
    dist.broadcast(torch.ones(4), group.rank)


def ragged_gather(group: Group) -> None:
    mine = torch.ones(4 - group.rank)
    dist.all_gather([torch.zeros_like(mine) for _ in range(group.size)], mine)


def object_for_tensor(group: Group) -> None:
    dist.all_gather_object([None, None], 1) if group.rank == 0 else dist.barrier()


@pytest.mark.parametrize(("function", "one", "other"), [
    (another_operation, "all_reduce SUM float32 [4]", "broadcast float32 [4] from rank 0"),
    (another_shape, "float32 [4]", "float32 [3]"),
    (another_dtype, "float32 [4]", "int32 [4]"),
    (another_reduction, "all_reduce MAX", "all_reduce SUM"),
    (another_root, "from rank 0", "from rank 1"),
    (ragged_gather, "all_gather 2 x float32 [4]", "all_gather 2 x float32 [3]"),
    (object_for_tensor, "all_gather_object", "barrier"),
])
def test_a_call_that_does_not_fit(function: Callable[[Group], Any], one: str, other: str) -> None:
    """Operation, shape, dtype, reduction and root are compared: both ranks' calls and places are named."""
    messages = told(function)
    require(messages, "MisuseError: Ranks 0 and 1 call different things as collective 1.", "Rank 0: ", "Rank 1: ",
            one, other, f" in {function.__name__}")
    assert messages[0] == messages[1]


def late(group: Group) -> None:
    dist.all_reduce(torch.ones(2))   # both
    if group.rank == 1:
        time.sleep(LIMIT_SECONDS + 1.5)
    else:
        dist.all_reduce(torch.ones(3))   # not rank 1


def test_a_rank_that_never_comes() -> None:
    """The others say within the limit who is missing, where it was last and what they wait in."""
    messages = told(late, 3)
    assert messages[1] == ""
    require([messages[0], messages[2]], "PeerError: Rank 1 did not come to collective 2 within 3 s. Ranks 0",
            "in all_reduce SUM float32 [3] at ", line(late, "# not rank 1"),
            "Rank 1 was last in collective 1, all_reduce SUM float32 [2] at ", line(late, "# both"))


def one_step_less(group: Group) -> None:
    for _ in range(3 - group.rank):
        dist.all_reduce(torch.ones(2))


def test_a_rank_that_has_ended() -> None:
    """A rank that returned is told at once, without waiting for the limit."""
    first, second = told(one_step_less)
    assert second == ""
    require([first], "PeerError: Rank 1 did not come to collective 3. Rank 0 waits there", "then its script ended.")


def crossed_groups(group: Group) -> None:
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=pair if group.rank == 0 else None)


def test_ranks_that_wait_in_two_groups_for_each_other() -> None:
    """Each is told what the other waits in."""
    for rank, message in enumerate(told(crossed_groups)):
        require([message], f"Rank {1 - rank} did not come to collective", "; then waited in collective",
                "of the group of ranks 0 and 1")


# DistributedDataParallel


def model(rank: int = 0, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), **options)


def fewer_batches(group: Group) -> None:
    net = model(broadcast_buffers=False)
    for _ in range(3 - group.rank):
        net(torch.ones(4, 3)).sum().backward()


def reduced_too_early(group: Group) -> None:
    net = model(broadcast_buffers=False)
    loss = net(torch.ones(4, 3)).sum()
    if group.rank == 0:
        dist.all_reduce(loss.detach())
    loss.backward()
    if group.rank == 1:
        dist.all_reduce(loss.detach())


def another_size(group: Group) -> None:
    DistributedDataParallel(nn.Linear(3, 4 + group.rank))


def test_the_reductions_of_ddp_are_in_the_order() -> None:
    """What DistributedDataParallel does in C++ is seen where it begins, and named with the user's line."""
    first, second = told(fewer_batches)
    assert second == ""
    require([first], "Rank 1 did not come to", "the backward of DistributedDataParallel", line(fewer_batches, "sum()"))
    require(told(reduced_too_early), "all_reduce SUM float32 []", "the backward of DistributedDataParallel")
    require(told(another_size), "of 2 parameters with 16 values", "of 2 parameters with 20 values", "in another_size")


def trained(group: Group, watched: bool) -> list[list[float]]:
    """A short training with all that ranks may do: buffers, no_sync, evaluation of unequal length, Join."""
    with compared(LIMIT_SECONDS) if watched else torch.enable_grad():
        net = model()
        data = torch.arange(24.0).reshape(8, 3).sin()[group.rank::group.size]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            with net.no_sync():
                net(data).square().mean().backward()
            net(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(1 + group.rank):
                net.module(data)
        with Join([net]):
            for _ in range(2 + group.rank):
                net(data).square().mean().backward()
        sums = torch.stack([parameter.detach().sum() for parameter in net.parameters()])
        waiting = dist.all_reduce(sums, async_op=True)
        assert waiting is not None
        waiting.wait()
        gathered: list[Any] = [None] * group.size
        dist.all_gather_object(gathered, sums.tolist())
    return gathered


def test_a_sound_training_passes_with_the_same_numbers() -> None:
    """--debug says nothing about a training that is in order, and does not change it."""
    assert run_groups(trained, 2, True) == run_groups(trained, 2, False)


def test_all_is_put_back() -> None:
    """After the block torch's functions are torch's own again."""
    before = (dist.all_reduce, dist.Reducer.prepare_for_backward, DistributedDataParallel.__init__, Join.__enter__)
    with compared(1.0):
        assert dist.all_reduce is not before[0]
        with compared(1.0):
            pass
        assert dist.distributed_c10d.all_reduce is dist.all_reduce is not before[0]
    assert before == (dist.all_reduce, dist.Reducer.prepare_for_backward, DistributedDataParallel.__init__,
                      Join.__enter__)


def test_calls_are_told_apart_by_their_callers() -> None:
    """A message shows as many frames as it takes to see the difference."""
    one, other = Call("x", ("a.py:1 in f", "a.py:5 in g")), Call("x", ("a.py:1 in f", "a.py:6 in g"))
    assert one.told() == "x at a.py:1 in f"
    assert one.told([other]) == "x at a.py:1 in f, called from a.py:5 in g"
    assert Call.from_json(one.to_json()) == one


def test_a_wrong_call_is_left_to_torch() -> None:
    """An argument that a collective does not take is torch's to refuse."""
    with compared(1.0), pytest.raises(TypeError, match="no_such"):
        dist.all_reduce(torch.ones(1), no_such=1)   # type: ignore[call-arg]
    with pytest.raises(TypeError):
        call_of("all_reduce", dist.all_reduce, (), {"no_such": 1}, None)   # type: ignore[arg-type]


def test_debug_is_on_or_off() -> None:
    """A value that is neither is refused."""
    with pytest.raises(UsageError, match="--debug is 'yes'"):
        Settings(debug="yes")   # type: ignore[arg-type]


# Whole runs

PLAIN = """
import sys
import torch, torch.distributed as dist

def share(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()

dist.init_process_group("gloo")
rank = dist.get_rank()
loss, accuracy = torch.tensor(2.0), torch.tensor(0.5)
names = ["loss", "accuracy"] if rank == 0 or "fine" in sys.argv else ["accuracy", "loss"]
for name in names:
    if name == "loss":
        loss = share(loss)
    else:
        accuracy = share(accuracy)
print(loss.item(), accuracy.item())
dist.destroy_process_group()
"""

RANKWISE_SCRIPT = """
import torch
import torch.distributed as dist
import rankwise as rw

def train(run, fault: bool = False):
    model = run.prepare(torch.nn.Linear(3, 1, dtype=torch.float64))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.arange(30, dtype=torch.float64).reshape(10, 3).sin()
    for epoch in run.epochs(2):
        for x in run.loader(data, 4, shuffle=True):
            run.step(model(x).square().mean(), optimizer)
            if fault and run.rank == 1:
                run.sum(torch.ones(1))
    print("weights", model.weight.tolist())

if __name__ == "__main__":
    rw.launch(train)
"""


def ended(folder: Path, script: str, *command: str, **variables: str) -> Ended:
    (folder / "train.py").write_text(script)
    return run(command, folder, **variables)


def test_a_plain_script(tmp_path: Path) -> None:
    """`rankwise run --debug` finds a swap in a script without rankwise; with torch's check it ends well, wrongly."""
    silent = ended(tmp_path, PLAIN, *RANKWISE, "run", "train.py", "--devices", "2", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert (silent.code, silent.out) == (0, "1.25 1.25\n"), silent.text
    loud = ended(tmp_path, PLAIN, *RANKWISE, "run", "train.py", "--devices", "2", "--debug")
    assert loud.code == 1
    require([loud.err], "Ranks 0 and 1 call the same collectives in another order", "train.py:15", "train.py:17",
            "all_reduce SUM float32 []")
    assert "Traceback" not in loud.err
    fine = ended(tmp_path, PLAIN, *RANKWISE, "run", "train.py", "--devices", "2", "--debug", "--", "fine")
    assert (fine.code, fine.out, fine.err) == (0, "2.0 0.5\n", "")


def test_a_script_of_rankwise_by_itself_and_under_torchrun(tmp_path: Path) -> None:
    """`python train.py --debug` gives the weights of a run without it; a collective too many is told with its line."""
    bare = (RANKWISE[0], "train.py", "--devices", "2")
    weights = [[line for line in each.out.splitlines() if line.startswith("weights")] for each in (
        ended(tmp_path, RANKWISE_SCRIPT, *bare), ended(tmp_path, RANKWISE_SCRIPT, *bare, "--debug"))]
    assert weights[0] == weights[1] != []
    script = RANKWISE_SCRIPT.replace("rw.launch(train)", f"rw.launch(train, debug=True, timeout={LIMIT_SECONDS})")
    fault = ended(tmp_path, script, *TORCHRUN, "2", "train.py", "--fault")
    assert fault.code == 1
    require([fault.err], "Ranks 0 and 1 call different things", "the averaging of gradients in backward", "train.py:12",
            "all_reduce SUM", "train.py:14")
