"""The process that writes checkpoints, killed at random moments: all that is found is whole, and nothing is lost."""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ranks import _context
from rankwise.checkpoint import folder as folders
from rankwise.checkpoint.ranks import Checkpoints
from rankwise.checkpoint.retention import Retention
from rankwise.group import Group
from rankwise.world import World

SIZE = 200
KEPT = 2


def _open(folder: Path) -> Checkpoints:
    return Checkpoints(folder, Group(World(), torch.device("cpu")), retention=Retention(last=KEPT))


def _things() -> dict[str, Any]:
    """Two files, a module's and the rest's, in which every number is that of the save."""
    model = nn.Linear(SIZE, SIZE)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def _fill(things: dict[str, Any], number: float) -> None:
    with torch.no_grad():
        for parameter in things["model"].parameters():
            parameter.fill_(number)
            things["optimizer"].state[parameter]["momentum_buffer"] = torch.full_like(parameter, number)


def _save_for_ever(folder: Path, pipe: Connection) -> None:
    """Go on from what is there; each step is saved twice, so that one replaces another; report each when it is kept."""
    torch.set_num_threads(1)
    checkpoints, things = _open(folder), _things()
    newest, damaged = checkpoints.begin(None)
    pipe.send((len(damaged), [path.name for path in folder.glob(".*")] if folder.exists() else []))
    number = 0 if newest is None else checkpoints.load(newest, things)["number"]
    while True:
        number += 1
        _fill(things, number)
        target, _ = checkpoints.save(number // 2, things, {"number": number})
        checkpoints.require_written(target)
        pipe.send(number)


def _kill_one(folder: Path, generator: random.Random) -> tuple[int, str]:
    """Start a writer and kill it some milliseconds after a report; the last number that it reported, and the moment."""
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_save_for_ever, args=(folder, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(60)
        assert ours.recv() == (0, []), "found by the next start: damaged checkpoints, leftovers of the one before"
        reported = 0
        for _ in range(generator.randrange(4)):
            assert ours.poll(60)
            reported = ours.recv()
        time.sleep(generator.uniform(0, 0.02))
    finally:
        process.kill()
        process.join(10)
    try:
        while ours.poll():
            reported = ours.recv()
    except (EOFError, OSError):
        pass
    moment = "while writing or removing" if list(folder.glob(".step-*")) else "between"
    return reported, moment


def _require_nothing_lost(folder: Path, reported: int) -> None:
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    for checkpoint in found:
        folders.require_sound(checkpoint)
    if not reported and not found:
        return
    newest, passed_over = folders.newest_sound(folder)
    assert newest is not None
    assert not passed_over
    things = _things()
    number = _open(folder).load(newest, things)["number"]
    assert number >= reported
    for parameter in things["model"].parameters():
        assert torch.equal(parameter, torch.full_like(parameter, number))
        moment = things["optimizer"].state[parameter]["momentum_buffer"]
        assert torch.equal(moment, torch.full_like(moment, number))


def _kill(folder: Path, times: int) -> dict[str, int]:
    generator = random.Random(0)
    moments = {"while writing or removing": 0, "between": 0}
    newest_reported = 0
    for _ in range(times):
        reported, moment = _kill_one(folder, generator)
        newest_reported = max(newest_reported, reported)
        _require_nothing_lost(folder, newest_reported)
        moments[moment] += 1
    return moments


def test_a_writer_killed_at_any_moment_leaves_whole_checkpoints(tmp_path: Path) -> None:
    moments = _kill(tmp_path / "checkpoints", 30)
    assert min(moments.values()) > 0, moments


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_writer_killed_a_thousand_times_leaves_whole_checkpoints(tmp_path: Path) -> None:
    moments = _kill(tmp_path / "checkpoints", 1000)
    print(f"1000 kills of the writer: {moments}; damaged checkpoints: 0; reported ones that were lost: 0")
    assert min(moments.values()) > 100, moments
