"""Ranks agree on a step while they train: the same step on all of them, whoever asks, whenever, however they run."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import rankwise as rw
from ranks import run_groups, run_ranks
from rankwise import stepagreement
from rankwise.errors import PeerError, Preempted
from rankwise.group import Group
from rankwise.sidechannel import SideChannel
from rankwise.stepagreement import NOTHING, StepAgreement

Acts = list[tuple[int, frozenset[str]]]


class Board:
    """What a launcher's store holds, for ranks that are threads; each answer comes a moment late."""

    def __init__(self, size: int, longest_seconds: float = 0.0) -> None:
        self.size, self.texts = size, dict[str, str]()
        self.longest_seconds, self.random = longest_seconds, random.Random(1)
        self.is_gone = False

    def seat(self, rank: int) -> Any:
        return Seat(self, rank)


class Seat:
    """A rank's side channel to the board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.size = board, rank, board.size

    def _travel(self) -> None:
        time.sleep(self.board.random.random() * self.board.longest_seconds)
        if self.board.is_gone:
            raise ConnectionError("gone")

    def post(self, name: str, text: str) -> None:
        self._travel()
        self.board.texts[name] = text

    def read(self, name: str) -> str | None:
        self._travel()
        return self.board.texts.get(name)


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meetings and thread switches so often that whatever can come between two lines does."""
    monkeypatch.setattr(stepagreement, "_POLL_SECONDS", 0.0005)
    monkeypatch.setattr(stepagreement, "_MEETING_POLL_SECONDS", 0.0001)
    monkeypatch.setattr(stepagreement, "_LEAD_SECONDS", 0.001)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def trained(size: int, steps: list[int], body: Callable[[int, int, StepAgreement], None],
            board: Board | None = None, kind: type[StepAgreement] = StepAgreement) -> list[Acts]:
    """What each rank, a thread, does at which of its steps; `body(rank, step, agreement)` is its step."""
    board = board or Board(size)
    acts: list[Acts] = [[] for _ in range(size)]
    problems: list[BaseException] = []

    def train(rank: int) -> None:
        agreement = kind(board.seat(rank), limit_seconds=20)
        try:
            for step in range(1, steps[rank] + 1):
                body(rank, step, agreement)
                due = agreement.due()
                if due:
                    acts[rank].append((step, due))
        except BaseException as error:
            problems.append(error)
        finally:
            agreement.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank waits for ever"
    if problems:
        raise problems[0]
    return acts


def keep_stepping(agreement: StepAgreement) -> None:
    for _ in range(10_000):
        agreement.due()
        time.sleep(0.001)


@pytest.mark.usefixtures("swift")
@pytest.mark.parametrize("seed", range(12))
def test_all_ranks_act_at_the_same_steps(seed: int) -> None:
    """Ranks of any speed, that wait for nobody or for each other as in a collective, with wishes at any moment."""
    chance = random.Random(seed)
    size = chance.choice([2, 3, 4])
    together = threading.Barrier(size) if seed % 2 else None
    wish_at = [{chance.randrange(1, 150): f"wish{rank}{number}" for number in range(3)} for rank in range(size)]
    pace_seconds = [chance.choice([0.0, 0.0001, 0.0005]) for _ in range(size)]

    def body(rank: int, step: int, agreement: StepAgreement) -> None:
        if step in wish_at[rank]:
            agreement.ask(wish_at[rank][step])
        time.sleep(pace_seconds[rank])
        if together is not None:
            together.wait(30)

    acts = trained(size, [200] * size, body, Board(size, longest_seconds=chance.choice([0.0, 0.0003])))
    assert all(each == acts[0] for each in acts)
    done = [wish for _, due in acts[0] for wish in due]
    assert len(done) == len(set(done)), "no wish is done twice"
    if together is not None:
        assert done, "ranks in step come to agree within the training"


class Interrupted(StepAgreement):
    """Its thread is held up right after it has read the count, while the training goes on."""

    @property
    def _steps(self) -> int:
        read = self._count
        if threading.current_thread() is self._thread:
            time.sleep(0.02)
        return read

    @_steps.setter
    def _steps(self, steps: int) -> None:
        self._count = steps


@pytest.mark.usefixtures("swift")
def test_no_rank_runs_past_the_step_while_its_bound_is_made() -> None:
    """The meeting is announced before the count is read: a training that goes on meanwhile stops at its bound."""
    def body(rank: int, step: int, agreement: StepAgreement) -> None:
        time.sleep(0.0001)
        if rank == 1 and step in (10, 1000):
            agreement.ask("save")

    first, second = trained(2, [3000, 3000], body, kind=Interrupted)
    assert first == second
    assert first


@pytest.mark.usefixtures("swift")
def test_a_rank_that_has_left_holds_nobody_up() -> None:
    """A meeting that one rank cannot attend is void for all others, and they go on."""
    def body(rank: int, step: int, agreement: StepAgreement) -> None:
        time.sleep(0.001 * (rank + 1))
        if rank == 2 and step == 50:
            agreement.ask("save")

    acts = trained(3, [5, 100, 100], body)
    assert acts == [[], [], []]


@pytest.mark.usefixtures("swift")
def test_a_rank_that_does_not_answer_is_named() -> None:
    """A rank whose threads stand still is told by those that wait for it, when the limit has passed."""
    board = Board(2)
    agreement = StepAgreement(board.seat(0), limit_seconds=0.5)
    agreement.ask("save")
    with pytest.raises(PeerError, match=r"Of ranks \[1\] nothing was heard within 0 s"):
        keep_stepping(agreement)
    agreement.close()


@pytest.mark.usefixtures("swift")
def test_a_store_that_is_gone_is_told() -> None:
    """Where the store ends in the middle of a meeting no rank goes on as if nothing had been asked."""
    board = Board(2)
    agreement = StepAgreement(board.seat(0), limit_seconds=5)
    agreement.ask("save")
    while "bound/0/0" not in board.texts:
        time.sleep(0.001)
    board.is_gone = True
    with pytest.raises(PeerError, match=r"The launcher's store does not answer \(gone\)"):
        keep_stepping(agreement)
    agreement.close()


def test_alone_a_wish_is_due_at_the_next_step() -> None:
    """One rank needs no meeting; each wish is done once."""
    agreement = StepAgreement(None, limit_seconds=1)
    assert agreement.due() == NOTHING
    agreement.ask("save")
    agreement.ask("stop")
    assert agreement.due() == {"save", "stop"}
    assert agreement.due() == NOTHING
    agreement.close()


def stopped(run: rw.Run, moment: str) -> tuple[int, list[str], dict[str, float]]:
    """Asked to stop in a body of the second epoch: at which step it did, and what was saved where."""
    model = run.prepare(nn.Linear(4, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = run.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1000))
    loader, scored = run.loader(torch.ones(21, 4), 4), run.loader(torch.ones(9, 4), 2)

    def batches() -> Any:
        return {"in a body": loader, "no loader": [torch.ones(2, 4)] * 6}.get(moment) or run.loader(loader.dataset, 4)

    def train() -> None:
        for epoch in run.epochs(9):
            for batch in batches():
                if epoch == 1 and run.steps == 8:
                    run._saving._parts.agreement.ask("stop")
                run.step(model(batch).square().mean(), optimizer)
                with torch.no_grad():
                    sum(float(model(more).sum()) for more in scored)
                schedule.step()

    with pytest.raises(Preempted):
        train()
    saved = [path.name for path in (run.folder / "checkpoints").iterdir()]
    states = torch.load(run.folder / "checkpoints" / saved[0] / "state.pt", weights_only=True).values()
    position = json.loads((run.folder / "checkpoints" / saved[0] / "position.json").read_text())["position"]
    return run.steps, saved, {"scheduled": next(each["last_epoch"] for each in states if "last_epoch" in each),
                              "epoch": position["epoch"], "batch": position["loaders"][0]["batch"]}


@pytest.mark.parametrize(("moment", "step", "position"), [
    ("in a body", 9, {"epoch": 1, "batch": 3}), ("made inside", 12, {"epoch": 2, "batch": 0}),
    ("no loader", 12, {"epoch": 2, "batch": 0})])
def test_a_wish_is_done_where_nothing_of_a_step_is_lost(moment: str, step: int, position: dict[str, int]) -> None:
    """At the end of the loop body, after the schedule; where that has no position, at the end of the epoch."""
    (steps, saved, state), = run_ranks(stopped, 1, moment)
    assert (steps, saved) == (step, [f"step-{step:06d}"])
    assert state == {"scheduled": step, **position}


def real(group: Group) -> Acts:
    channel = SideChannel.open(group.world, limit_seconds=20)
    assert channel is not None
    agreement = StepAgreement(channel, limit_seconds=20)
    acts: Acts = []
    step = 0
    while len(acts) < 2:
        step += 1
        if group.rank == 1 and step in (20, 200):
            agreement.ask("save")
        group.agree(False)   # the collective of a step
        time.sleep(0.002)
        due = agreement.due()
        if due:
            acts.append((step, due))
    agreement.close()
    return acts


def test_real_ranks_agree() -> None:
    """Three processes, through a store on loopback: the wish of one is done by all at one step, twice."""
    first, *others = run_groups(real, 3)
    assert [due for _, due in first] == [{"save"}, {"save"}]
    assert all(each == first for each in others)
