"""The records of metrics.jsonl: the start, the checkpoints and the end of a run, however it ends."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import run_groups
from rankwise.errors import Preempted
from rankwise.launcher.session import open_run
from rankwise.run import Run
from rankwise.settings import Settings

ENDS = {"finished": None, "failed": ValueError("a fault"), "preempted": Preempted(), "interrupted": KeyboardInterrupt()}


def _train(run: Run, epochs: int, error: BaseException | None) -> None:
    """Three steps an epoch, a checkpoint after each."""
    model = run.prepare(torch.nn.Linear(3, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    loader = run.loader(torch.arange(21.0).reshape(7, 3), 3)
    for epoch in run.epochs(epochs):
        for rows in loader:
            run.step(model(rows).square().mean(), optimizer)
            if error is not None and epoch == epochs - 1:
                raise error
        run.save()


def _run_to_its_end(group: Any, folder: str, epochs: int, how: str, resume: bool = False) -> None:
    settings = Settings(mode="ddp" if group.size > 1 else "single", timeout=30.0, log_every=2, runs=folder, name="it")
    run_folder = Path(folder) / "it"
    error = ENDS[how]
    with (contextlib.suppress(ValueError, Preempted, KeyboardInterrupt),
          open_run(settings, group, folder=run_folder, resume_from=run_folder if resume else None) as run):
        _train(run, epochs, error)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "it" / "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    return [line for line in lines if "record" in line]


@pytest.mark.parametrize("how", list(ENDS))
def test_a_run_says_how_it_began_and_ended(how: str, tmp_path: Path) -> None:
    run_groups(_run_to_its_end, 2, str(tmp_path), 2, how)
    found = records(tmp_path)
    start, end = found[0], found[-1]
    assert start["record"] == "start"
    assert [start[name] for name in ("step", "attempt", "mode", "devices", "world_size")] == [0, 0, "ddp", 2, 2]
    assert start["settings"] == asdict(Settings(mode="ddp", timeout=30.0, log_every=2, runs=str(tmp_path), name="it"))
    assert start["environment"]["torch"] == torch.__version__
    assert start["environment"]["backend"] == "gloo"
    assert (end["record"], end["how"]) == ("end", how)
    assert end["step"] == (6 if how == "finished" else 4)
    kept = [line["path"] for line in found if line["record"] == "checkpoint"]
    assert kept == ["checkpoints/step-000003", "checkpoints/step-000006"][:2 if how == "finished" else 1]
    assert all((tmp_path / "it" / path).is_dir() for path in kept)
    if how == "finished":
        assert [line.split("  ")[0] for line in end["lines"]] == ["throughput", "step", "memory", "slowest rank",
                                                                  "advice"]


def test_a_resumed_run_begins_again_in_the_same_log(tmp_path: Path) -> None:
    """What was done behind the checkpoint is superseded; the first start stays, and the second says where it goes on.
    """
    run_groups(_run_to_its_end, 1, str(tmp_path), 2, "failed")
    run_groups(_run_to_its_end, 2, str(tmp_path), 3, "finished", True)
    found = records(tmp_path)
    starts = [(line["step"], line["world_size"]) for line in found if line["record"] == "start"]
    assert starts == [(0, 1), (3, 2)]
    steps = [(line["step"], line["steps"]) for line in found if line["record"] == "split"]
    assert sum(count for _, count in steps) == 9
    assert steps[-1][0] == 9
    assert [line["how"] for line in found if line["record"] == "end"] == ["finished"]


def test_a_resumed_run_with_nothing_left_to_do_says_that_it_ended(tmp_path: Path) -> None:
    """It was killed before it could: the log has its end from the start that found no epoch left."""
    run_groups(_run_to_its_end, 1, str(tmp_path), 2, "finished")
    log = tmp_path / "it" / "metrics.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"end"' not in line))
    run_groups(_run_to_its_end, 1, str(tmp_path), 2, "finished", True)
    found = records(tmp_path)
    assert [line["record"] for line in found][-2:] == ["start", "end"]
    assert found[-2]["step"] == 6


def _saved_twice(group: Any, folder: str) -> None:
    """By the clock of `--save-every`, and by the script, at the same steps."""
    settings = Settings(mode="single", timeout=30.0, runs=folder, name="it", save_every="3")
    with open_run(settings, group, folder=Path(folder) / "it") as run:
        _train(run, 2, None)


def test_a_checkpoint_taken_twice_at_one_step_is_on_record_once(tmp_path: Path) -> None:
    run_groups(_saved_twice, 1, str(tmp_path))
    kept = [line["path"] for line in records(tmp_path) if line["record"] == "checkpoint"]
    assert kept == ["checkpoints/step-000003", "checkpoints/step-000006"]
