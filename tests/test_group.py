"""What ranks say to each other."""

from __future__ import annotations

import time

import pytest
import torch

from ranks import RankFailure, run_groups
from rankwise.errors import PeerError
from rankwise.group import Group
from rankwise.world import World


def reductions(group: Group) -> dict[str, object]:
    own = torch.tensor([float(group.rank), 1.0])
    later = group.sum_later(own.clone())
    return {
        "sum": group.sum(own.clone()).tolist(), "later": later.wait().tolist(), "max": group.max(own.clone()).tolist(),
        "from_last": group.broadcast(own.clone(), source=group.size - 1).tolist(),
        "objects": group.gather_objects({"rank": group.rank}), "one": group.broadcast_object(f"r{group.rank}"),
        "nobody": group.agree(False), "somebody": group.agree(group.rank == group.size - 1),
    }


@pytest.mark.parametrize("size", [1, 3])
def test_reductions_give_every_rank_the_same(size: int) -> None:
    """Sums, maxima, broadcasts, gathers and agreements are those of all ranks, on all ranks."""
    total = float(sum(range(size)))
    for answer in run_groups(reductions, size):
        assert answer == {
            "sum": [total, float(size)], "later": [total, float(size)], "max": [size - 1.0, 1.0],
            "from_last": [size - 1.0, 1.0], "objects": [{"rank": rank} for rank in range(size)], "one": "r0",
            "nobody": False, "somebody": True,
        }


def alone_longer_than_the_limit(group: Group) -> float:
    started = time.monotonic()
    with group.alone("a long block") as mine:
        if mine:
            time.sleep(3.0)
    group.barrier()
    return time.monotonic() - started


def test_rank_0_may_work_alone_longer_than_the_time_limit() -> None:
    """The others wait outside a collective, so its time limit does not run."""
    assert all(seconds >= 2.9 for seconds in run_groups(alone_longer_than_the_limit, 2, timeout_seconds=2.0))


def alone_and_failing(group: Group) -> None:
    with group.alone("the upload") as mine:
        if mine:
            raise ValueError("no such bucket")


def test_a_failure_alone_reaches_the_others() -> None:
    """When rank 0 fails in its block, the others do not wait for it."""
    with pytest.raises(RankFailure, match=r"(?s)rank 1.*waited for rank 0 in the upload"):
        run_groups(alone_and_failing, 2)


def one_returns_early(group: Group) -> str:
    group.at_step(7)
    if group.rank == 1:
        return "returned"
    try:
        group.sum(torch.zeros(1000))
    except PeerError as error:
        return str(error)
    return "no error"


def test_a_rank_that_lost_another_says_where() -> None:
    """A rank that waits for one that returned early says in what, in which step, and how the transport told it."""
    answers = run_groups(one_returns_early, 2)
    assert "Rank 0 waited in a reduction, in step 7, and another rank did not come" in answers[0]
    assert "Connection closed by peer" in answers[0]


def one_hangs(group: Group) -> str:
    if group.rank == 1:
        time.sleep(4.0)
        return "slept"
    try:
        group.barrier("the barrier at the end")
    except PeerError as error:
        return str(error)
    return "no error"


def test_a_wait_ends_within_the_limit() -> None:
    """Nothing waits for ever: after the time limit a rank says what it waited in."""
    answers = run_groups(one_hangs, 2, timeout_seconds=2.0)
    assert "the barrier at the end" in answers[0]
    assert "Timed out waiting 2000ms" in answers[0]


def never_comes_to_alone(group: Group) -> str:
    if group.is_main:
        group.ended("returned from the training function at step 3")
        return "returned"
    try:
        with group.alone("the upload"):
            pass
    except PeerError as error:
        return str(error)
    return "no error"


def test_a_rank_0_that_ended_is_not_waited_for() -> None:
    """Where rank 0 ended before its block of work alone, the others learn how, and do not wait out the limit."""
    answers = run_groups(never_comes_to_alone, 2)
    assert "Rank 0 returned from the training function at step 3" in answers[1]


def test_ranks_that_never_come_are_reported() -> None:
    """Opening a group without the others ends within the limit, with a message."""
    import torch.distributed as dist
    with pytest.raises(PeerError, match="of 2 could not meet the others within"):
        Group.open(World(rank=0, size=2, local_size=2), torch.device("cpu"), timeout_seconds=1.0,
                   store=dist.HashStore())


@pytest.mark.parametrize(("environ", "expected"), [
    ({}, None),
    ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}, (3, 4, 1, 2, 1)),
    ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, 1, 0)),
])
def test_world_is_read_from_the_launchers_variables(environ: dict[str, str],
                                                    expected: tuple[int, ...] | None) -> None:
    """torchrun's variables become a World; without them there is none."""
    world = World.detect(environ)
    found = world and (world.rank, world.size, world.local_rank, world.local_size, world.node)
    assert found == expected


@pytest.mark.parametrize("environ", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"},
                                     {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}])
def test_contradicting_variables_are_refused(environ: dict[str, str]) -> None:
    """Variables that contradict each other are a usage error with its three parts."""
    from rankwise.errors import UsageError
    with pytest.raises(UsageError, match="rankwise run"):
        World.detect(environ)
