"""Where the time of a step goes, held against times that are known: sleeps, and a rank that is late."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ranks import run_ranks
from rankwise.ledger import BACKWARD, COMMUNICATION, DATA, FORWARD, OTHER, OUTSIDE, PHASES, Ledger

ROWS, BATCH = 23, 5   # five steps, the last of three rows
STEPS = 5
NAP = 0.04


class SlowData(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, nap: float) -> None:
        self.nap = nap

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.nap)
        return torch.full((4,), float(index))


class Nap(nn.Module):
    """Sleeps in forward, and as long as asked in backward."""

    def __init__(self, forward: float = 0.0, backward: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.naps = forward, backward

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(self.naps[0])
        out = self.layer(rows)
        if self.naps[1]:
            out.register_hook(lambda _: time.sleep(self.naps[1]))
        return out


class Splits:
    """A sink that keeps what the steps of each interval were spent on."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def open(self, folder: Path, step: int) -> None:
        pass

    def write(self, step: int, epoch: int, values: Any) -> None:
        pass

    def record(self, kind: str, step: int, epoch: int, values: Any) -> None:
        if kind == "split":
            self.all.append({"step": step, "epoch": epoch, **values})

    def close(self) -> None:
        pass


def train(run: Any, *, data: float = 0.0, forward: float = 0.0, backward: float = 0.0, late: float = 0.0,
          after: float = 0.0, evaluation: float = 0.0) -> list[dict[str, Any]]:
    """What two epochs were spent on, by interval; `late` is how much longer the last rank's forward takes."""
    is_late = run.rank == run.world_size - 1
    splits = Splits()
    run.sinks.append(splits)
    model = run.prepare(Nap(forward + late * is_late, backward))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 1e-3))
    loader = run.loader(SlowData(data), BATCH)
    before = [each.clone() for each in model.parameters()]
    for _ in run.epochs(2):
        with torch.no_grad():
            for _ in run.loader(SlowData(evaluation), BATCH):
                pass
        for rows in loader:
            run.step(model(rows).square().mean(), optimizer)
            time.sleep(after)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return splits.all


def last_epoch(run: Any, naps: dict[str, float]) -> dict[str, Any]:
    """Of the second epoch, which is one interval: much is made in the first."""
    splits = train(run, **naps)
    return splits[-1] if run.is_main else {}


@pytest.mark.parametrize(("where", "phase", "naps"), [("data", "data", ROWS), ("forward", "forward", STEPS),
                                                      ("backward", "backward", STEPS), ("after", "other", STEPS),
                                                      ("evaluation", "outside", ROWS)])
def test_a_sleep_is_found_where_it_was_taken(where: str, phase: str, naps: int) -> None:
    """On one rank: the time of a known sleep stands in its phase, and in no other."""
    split = run_ranks(last_epoch, 1, {where: NAP})[0]
    assert (split["step"], split["epoch"], split["steps"], split["samples"]) == (2 * STEPS, 1, STEPS, ROWS)
    rank = split["ranks"][0]
    known = naps * NAP / STEPS
    assert rank[phase] >= known
    assert sum(rank[each] for each in PHASES if each != phase) < 0.5 * known
    assert rank["communication"] == rank["wire_bytes"] == 0
    assert rank["communication_total"] is None


def test_waiting_for_a_late_rank_is_communication_of_the_others() -> None:
    """On three ranks, the last of them late: the others wait for it after their backward, and all ranks' books say so.
    """
    ranks = run_ranks(last_epoch, 3, {"forward": 0.01, "late": NAP})[0]["ranks"]
    for early in ranks[:2]:
        assert early["communication"] > 0.8 * NAP
        assert early["forward"] < NAP
    assert ranks[2]["forward"] >= NAP
    assert ranks[2]["communication"] < 0.5 * ranks[0]["communication"]


def test_time_before_the_gradients_are_there_is_backward() -> None:
    """A sleep in backward is no communication, on either rank."""
    for rank in run_ranks(last_epoch, 2, {"backward": NAP})[0]["ranks"]:
        assert rank["backward"] >= NAP
        assert rank["communication"] < NAP


def test_bytes_are_those_of_a_ring() -> None:
    """On three ranks each gradient is sent 4/3 times a step; the losses and the books are little beside."""
    split = run_ranks(last_epoch, 3, {})[0]
    gradients = 4 / 3 * (4 + 1) * 4
    for rank in split["ranks"]:
        assert gradients <= rank["wire_bytes"] < gradients + 2000 / STEPS
        assert rank["communication_total"] > 0
        assert rank["memory_bytes"][0] > 50_000_000
    assert split["communication_from"] == "torch's DDP log"


def test_the_first_step_stands_apart() -> None:
    splits = run_ranks(_all_splits, 1)[0]
    assert [(split["step"], split["steps"]) for split in splits] == [(1, 1), (STEPS, STEPS - 1), (2 * STEPS, STEPS)]


def _all_splits(run: Any) -> list[dict[str, Any]]:
    return train(run)


def test_phases_add_up_to_the_time_that_passed() -> None:
    ledger = Ledger()
    began = time.perf_counter()
    for phase in (DATA, FORWARD, BACKWARD, OTHER) * 3:
        ledger.enter(phase)
        time.sleep(0.002)
    seconds = ledger.close().seconds()
    assert sum(seconds) == pytest.approx(time.perf_counter() - began, abs=0.002)
    assert seconds[COMMUNICATION] == 0
    assert sum(ledger.close().seconds()) < 0.05


def test_a_wait_outside_of_steps_is_no_communication() -> None:
    ledger = Ledger()
    with ledger.communicating():
        assert ledger.phase == OUTSIDE
    ledger.enter(FORWARD)
    with ledger.communicating():
        with ledger.communicating():
            assert ledger.phase == COMMUNICATION
        assert ledger.phase == COMMUNICATION
    assert ledger.phase == FORWARD


def test_a_backward_without_other_ranks_has_no_tail() -> None:
    """The hook goes with the block: a second backward of the same loss is not told of."""
    ledger = Ledger()
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    ledger.enter(BACKWARD)
    with ledger.tail_of_backward(loss):
        loss.backward(retain_graph=True)
    assert ledger.phase == COMMUNICATION
    ledger.enter(BACKWARD)
    loss.backward()
    assert ledger.phase == BACKWARD
