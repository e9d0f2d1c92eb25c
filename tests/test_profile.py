"""`--profile`: traces of torch's profiler, of the steps that were asked for, on every rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import run_ranks
from rankwise.errors import UsageError
from rankwise.settings import Settings


def _train(run: Any, epochs: int) -> list[str]:
    """Three steps an epoch; the names of what the trace of this rank holds."""
    model = run.prepare(torch.nn.Linear(3, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    loader = run.loader(torch.arange(21.0).reshape(7, 3), 3)
    for _ in run.epochs(epochs):
        for rows in loader:
            run.step(model(rows).square().mean(), optimizer)
    run._monitor.close()
    traces = list(Path(run.folder).glob("profile/*"))
    assert f"rank{run.rank}.json.gz" in {path.name for path in traces} or not traces
    return names_in(Path(run.folder) / "profile" / f"rank{run.rank}.json.gz") if traces else []


def names_in(file: Path) -> list[str]:
    with gzip.open(file, "rt") as trace:
        return [event.get("name", "") for event in json.load(trace)["traceEvents"]]


def test_each_rank_leaves_a_trace_of_the_steps_asked_for() -> None:
    for names in run_ranks(_train, 2, 3, profile="4:6"):
        assert names.count("Optimizer.step#SGD.step") == 3
        assert any("all_reduce" in name for name in names)


def test_a_number_of_steps_begins_behind_the_first_ten() -> None:
    names = run_ranks(_train, 1, 5, profile="2")[0]
    assert names.count("Optimizer.step#SGD.step") == 2


def test_a_training_that_ends_sooner_keeps_what_was_recorded() -> None:
    assert run_ranks(_train, 1, 2, profile="5:99")[0].count("Optimizer.step#SGD.step") == 2


def test_a_training_that_never_comes_there_leaves_nothing() -> None:
    assert run_ranks(_train, 1, 1, profile="9:10") == [[]]


@pytest.mark.parametrize(("given", "steps"), [("5", (11, 15)), (5, (11, 15)), ("100:105", (100, 105)), ("7:7", (7, 7)),
                                              (None, None)])
def test_what_is_asked_for(given: Any, steps: tuple[int, int] | None) -> None:
    assert Settings(profile=given).profiled_steps == steps


@pytest.mark.parametrize("given", ["", "0", "0:3", "5:4", "-3", "1:2:3", "ten"])
def test_what_cannot_be_asked_for(given: str) -> None:
    with pytest.raises(UsageError, match="--profile is"):
        Settings(profile=given)
