"""Where the time of a step goes, held against times that are known: sleeps, and a rank that is late."""

from __future__ import annotations

import time
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


def train(run: Any, *, data: float = 0.0, forward: float = 0.0, backward: float = 0.0, late: float = 0.0,
          after: float = 0.0, evaluation: float = 0.0) -> dict[str, float]:
    """Seconds by phase of the second epoch; `late` is how much longer the last rank's forward takes."""
    is_late = run.rank == run.world_size - 1
    model = run.prepare(Nap(forward + late * is_late, backward))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 1e-3))
    loader = run.loader(SlowData(data), BATCH)
    before = [each.clone() for each in model.parameters()]
    ledger = run._group.ledger
    for _ in run.epochs(2):
        ledger.close()   # much is made in the first epoch
        for rows in loader:
            run.step(model(rows).square().mean(), optimizer)
            time.sleep(after)
        with torch.no_grad():
            for _ in run.loader(SlowData(evaluation), BATCH):
                pass
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    book = ledger.close()
    found = dict(zip(PHASES, book.seconds(), strict=True))
    return {**found, "sent_bytes": book.sent_bytes, "total": book.communication_seconds or 0.0,
            "parameter_bytes": sum(each.nbytes for each in model.parameters())}


def named(found: dict[str, float], *names: str) -> float:
    return sum(found[name] for name in names)


@pytest.mark.parametrize(("where", "phase", "naps"), [("data", "data", ROWS), ("forward", "forward", STEPS),
                                                      ("backward", "backward", STEPS), ("after", "other", STEPS),
                                                      ("evaluation", "outside", ROWS)])
def test_a_sleep_is_found_where_it_was_taken(where: str, phase: str, naps: int) -> None:
    """On one rank: the time of a known sleep stands in its phase, and in no other."""
    found = run_ranks(_train, 1, {where: NAP})[0]
    known = naps * NAP
    assert found[phase] >= known
    assert sum(found[each] for each in PHASES if each != phase) < 0.5 * known
    assert found["communication"] == 0
    assert found["sent_bytes"] == 0


def test_waiting_for_a_late_rank_is_communication_of_the_others() -> None:
    """On three ranks, the last of them late: the others wait for it after their backward."""
    found = run_ranks(_train, 3, {"forward": 0.01, "late": NAP})
    known = STEPS * NAP
    for rank in (0, 1):
        assert 0.8 * known < found[rank]["communication"]
        assert found[rank]["forward"] < known
    assert found[2]["forward"] >= known
    assert found[2]["communication"] < 0.5 * found[0]["communication"]


def test_time_hidden_behind_backward_is_not_exposed() -> None:
    """A sleep in backward before the gradients are there is backward, on every rank."""
    for found in run_ranks(_train, 2, {"backward": NAP}):
        assert found["backward"] >= STEPS * NAP
        assert found["communication"] < STEPS * NAP


def test_bytes_are_those_of_a_ring() -> None:
    """On three ranks each gradient is sent 4/3 times a step; the loss, the proof and the agreements are little beside.
    """
    for found in run_ranks(_train, 3, {}):
        gradients = STEPS * 4 / 3 * found["parameter_bytes"]
        assert gradients <= found["sent_bytes"] < gradients + 1000
        assert found["total"] > 0


def _train(run: Any, naps: dict[str, float]) -> dict[str, float]:
    return train(run, **naps)


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
