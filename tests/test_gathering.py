"""Machines gather in rounds: who takes part, who waits, who is missed. Machines are threads here, on one loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rankwise.errors import PeerError, UsageError
from rankwise.launcher import gathering
from rankwise.launcher.farstore import FarStore
from rankwise.launcher.gathering import Gathering, Over, Round
from rankwise.settings import Settings

Machines = Callable[..., Gathering]


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Makes machine `number` of a run; they meet at one endpoint."""
    monkeypatch.setattr(gathering, "_LAST_CALL_SECONDS", 0.3)
    monkeypatch.setattr(gathering, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(gathering, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(gathering, "_FAREWELL_SECONDS", 0.3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def machine(number: int, nodes: str, timeout: float = 20.0, **given: Any) -> Gathering:
        settings = Settings(nodes=nodes, node_rank=number, endpoint=f"127.0.0.1:{port}", timeout=timeout,
                            max_restarts=3, **given)
        return Gathering(settings, "127.0.0.1", port, "the-run")

    return machine


@pytest.fixture
def at_once() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in a thread of its own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def ended(futures: list[Future[Any]]) -> list[Any]:
    """Results, or the exceptions in their place."""
    return [future.exception(30) or future.result() for future in futures]


AtOnce = Callable[..., Future[Any]]


def rounds(futures: list[Future[Any]]) -> list[tuple[int, list[int]]]:
    results = [future.result(30) for future in futures]
    assert all(isinstance(result, Round) for result in results)
    assert len({result.port for result in results}) == 1
    return [(result.number, result.machines) for result in results]


def test_all_machines_that_are_asked_for_begin_at_once(machines: Machines, at_once: AtOnce) -> None:
    """Each hears the same: who takes part, the store of the ranks, and the folder that machine 0 chose."""
    found = [machines(number, "3") for number in range(3)]
    assert rounds([at_once(machine.next_round) for machine in found]) == [(0, [0, 1, 2])] * 3
    assert [machine.folder() for machine in found] == ["the-run"] * 3
    assert [machine.waiting() for machine in found] == [0] * 3


def test_enough_machines_begin_after_a_last_call(machines: Machines, at_once: AtOnce) -> None:
    found = [machines(number, "2:4") for number in (0, 3)]
    assert rounds([at_once(machine.next_round) for machine in found]) == [(0, [0, 3])] * 2


def test_a_later_machine_is_waited_for_by_those_that_run(machines: Machines, at_once: AtOnce) -> None:
    """Where the run has room, all of them begin again with it."""
    found = [machines(number, "2:3") for number in range(3)]
    rounds([at_once(machine.next_round) for machine in found[:2]])
    later = at_once(found[2].next_round)
    while found[1].waiting() == 0:
        time.sleep(0.01)
    assert found[0].waiting() == 1
    again = [at_once(machine.next_round) for machine in found[:2]]
    assert rounds([*again, later]) == [(1, [0, 1, 2])] * 3


def test_a_spare_machine_takes_the_place_of_a_lost_one_and_of_no_other(machines: Machines, at_once: AtOnce) -> None:
    """While the run is full nobody minds the spare one; after a failure machines of the round before go first."""
    found = [machines(number, "2:2") for number in range(3)]
    rounds([at_once(machine.next_round) for machine in found[:2]])
    spare = at_once(found[2].next_round)
    time.sleep(0.3)
    assert found[0].waiting() == 0
    assert rounds([at_once(machine.next_round) for machine in found[:2]]) == [(1, [0, 1])] * 2
    assert not spare.done()
    assert rounds([at_once(found[0].next_round), spare]) == [(2, [0, 2])] * 2


def test_a_machine_whose_ranks_failed_calls_the_others(machines: Machines, at_once: AtOnce) -> None:
    """Also where the run is full, and also machine 0."""
    found = [machines(number, "3") for number in range(3)]
    rounds([at_once(machine.next_round) for machine in found])
    first = at_once(found[0].next_round)
    while found[1].waiting() == 0:
        time.sleep(0.01)
    assert rounds([first, *(at_once(machine.next_round) for machine in found[1:])]) == [(1, [0, 1, 2])] * 3


def test_a_machine_that_is_missed_is_named_to_all(machines: Machines, at_once: AtOnce) -> None:
    found = [machines(number, "3", timeout=1.0) for number in range(2)]
    for error in ended([at_once(machine.next_round) for machine in found]):
        assert isinstance(error, PeerError)
        assert error.truth == "Of machine 2 nothing was heard."


@pytest.mark.parametrize(("nodes", "number_of_machines"), [("2", 2), ("2:3", 3)])
def test_a_machine_that_has_failed_for_good_is_not_waited_for(machines: Machines, at_once: AtOnce, nodes: str,
                                                              number_of_machines: int) -> None:
    """Too few are left without it, and the time limit need not pass; with enough of them the run goes on."""
    found = [machines(number, nodes) for number in range(number_of_machines)]
    rounds([at_once(machine.next_round) for machine in found])
    found[1].leave("its ranks failed")
    futures = [at_once(machine.next_round) for machine in found if machine is not found[1]]
    if nodes == "2":
        error = futures[0].exception(10)
        assert isinstance(error, PeerError)
        assert error.truth == "Machine 1 has failed; its output says why."
    else:
        assert rounds(futures) == [(1, [0, 2])] * 2


@pytest.mark.parametrize("problem", ["", "Machine 0 ended, and its ranks with it."])
def test_what_a_waiting_machine_hears_at_the_end(machines: Machines, at_once: AtOnce, problem: str) -> None:
    """A run that ended well does without it; one that failed says so."""
    found = [machines(number, "1:1") for number in range(2)]
    rounds([at_once(found[0].next_round)])
    spare = at_once(found[1].next_round)
    time.sleep(0.2)
    found[0].leave(problem)
    error = spare.exception(10)
    assert isinstance(error, PeerError if problem else Over)
    assert not problem or error.truth == problem   # type: ignore[union-attr]


@pytest.mark.parametrize(("theirs", "ours", "names"), [
    ({"name": "big"}, {"name": "small"}, ("--name big", "--name small")),
    ({"seed": 3, "exact": 4}, {"seed": 5}, ("--seed 3 and --exact 4", "--seed 5 and no --exact"))])
def test_a_machine_of_another_run_is_refused(machines: Machines, at_once: AtOnce, theirs: dict[str, Any],
                                             ours: dict[str, Any], names: tuple[str, str]) -> None:
    """With both runs in one message; the run that it met by mistake goes on, and begins without it once more."""
    found = [machines(number, "2:3", **theirs) for number in range(2)]
    rounds([at_once(machine.next_round) for machine in found])
    foreign = machines(2, "2:3", **ours)
    error = at_once(foreign.next_round).exception(10)
    assert isinstance(error, PeerError)
    assert (names[0] in error.truth, names[1] in error.given) == (True, True), str(error)
    foreign.leave("it ends")
    assert [machine.waiting() for machine in found] == [0, 0]
    assert rounds([at_once(machine.next_round) for machine in found]) == [(1, [0, 1])] * 2


def test_a_machine_need_not_know_the_name_of_its_run(machines: Machines, at_once: AtOnce) -> None:
    """Machine 0 chooses the folder."""
    found = [machines(0, "2", name="big"), machines(1, "2")]
    assert rounds([at_once(machine.next_round) for machine in found]) == [(0, [0, 1])] * 2


class Silent:
    """A store whose machine is cut off."""

    def __init__(self) -> None:
        self.asked = 0
        self.end = threading.Event()

    def check(self, names: list[str]) -> bool:
        self.asked += 1
        self.end.wait(30)
        return False

    def set(self, name: str, text: str) -> None:
        raise RuntimeError("Broken pipe")


def test_a_silent_store_is_given_up() -> None:
    """The limit passes once; what is asked afterwards fails at once. What the store says of itself is passed on."""
    store = Silent()
    far = FarStore(store, limit_seconds=0.2)   # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ConnectionError, match="no answer within 0 s"):
            far.read("round")
    assert store.asked == 1
    store.end.set()
    with pytest.raises(ConnectionError, match="Broken pipe"):
        FarStore(store, limit_seconds=5).post("round", "1")   # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "message"), [
    ({"nodes": "two"}, "with MIN not above MAX"), ({"nodes": "3:2"}, "or MIN:MAX"),
    ({"nodes": "0"}, "or MIN:MAX"), ({"nodes": 2}, "The machines must know where to meet"),
    ({"nodes": "2", "node_rank": 2, "endpoint": "a:1"}, "Machines are numbered 0 to 1"),
    ({"nodes": "1:2", "endpoint": "a:1"}, "A machine that is lost would end the run"),
    ({"max_restarts": -1}, "at least 0"), ({"grace_seconds": 0}, "positive number of seconds")])
def test_what_cannot_be_asked_for(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(**given)
