"""`rankwise watch`, and what the ranks tell of themselves: true while they train, wait, save, restart and end."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import json
import os
import pickle
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import runlogs
from launches import RANKWISE, Launch
from rankwise import cli, rankstatus
from rankwise.launcher.job import Job
from rankwise.pulse import Pulse
from rankwise.rankstatus import RankStatus
from rankwise.settings import Settings
from rankwise.watch import tables
from rankwise.watch.sight import look
from rankwise.watchdog import recorder
from rankwise.watchdog.bulletin import Bulletin
from rankwise.watchdog.state import Doing, RankState
from rankwise.world import World
from warm import failures_of

pytestmark = pytest.mark.timeout(120)

# In a rank: `await_status(rank, condition)` looks at a rank's file until it says what is awaited, or fails.
ASKING = """
import os, time
from pathlib import Path
from rankwise import rankstatus

def await_status(rank, condition):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        said = [each for each in rankstatus.read(Path(os.environ["RANKWISE_RUN_FOLDER"]) / "status")
                if each.rank == rank]
        if said and condition(said[0]):
            return said[0]
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} says {said}")
"""

PLAIN = ASKING + """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
weight = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(5):
    weight.sum().backward()
    optimizer.step()
if rank == 1:
    await_status(0, lambda said: said.state.startswith("waits in") and "{script}:{line}" in said.state)
    await_status(1, lambda said: said.step == 5 and said.memory_bytes[0] > 1e6)
dist.all_reduce(torch.ones(1))   # !
dist.destroy_process_group()
"""

OWN = ASKING + """
import torch
import rankwise as rw
from torch import nn

class Asks(nn.Linear):
    def forward(self, batch):
        if self.training and run.steps == 3:
            await_status(run.rank, lambda said: said.phase == "forward" and said.state == "training" and said.step == 3)
        return super().forward(batch)

def train(given: rw.Run) -> None:
    global run
    run = given
    model = run.prepare(Asks(3, 2))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in run.epochs(2):
        for batch in run.loader(torch.ones(22, 3), 5):
            run.step(model(batch).sum(), optimizer)
        await_status(run.rank, lambda said: said.epoch == epoch and said.phase == "outside")
    with run.alone() as mine:
        if mine:
            await_status(0, lambda said: said.state.startswith("alone: "))

rw.launch(train)
"""


def ended_well(folder: Path, script: str, **settings: Any) -> list[RankStatus]:
    """A script in two real ranks; what they said last."""
    file = folder / "script.py"
    line = next((number for number, text in enumerate(script.splitlines(), 1) if text.endswith("# !")), 0)
    file.write_text(script.replace("{script}", file.name).replace("{line}", str(line)))
    run_folder = folder / "run"
    run_folder.mkdir()
    failures = failures_of(Job(script=str(file), argv=[str(file)], has_terminal=False),
                           Settings(mode="ddp", devices=2, **settings), run_folder)
    assert not failures, next(iter(failures.values())).text
    return rankstatus.read(run_folder / "status")


def test_ranks_of_a_plain_script_say_where_they_stand(tmp_path: Path) -> None:
    """Which step, how much memory, and in which line one waits for another; at last that they have ended."""
    statuses = ended_well(tmp_path, PLAIN)
    assert [(each.rank, each.world_size, each.state, each.has_ended, each.step) for each in statuses] == [
        (0, 2, "ended", True, 5), (1, 2, "ended", True, 5)]


def test_ranks_of_a_run_say_more(tmp_path: Path) -> None:
    """The epoch, the part of the step, and that rank 0 works alone."""
    statuses = ended_well(tmp_path, OWN)
    assert [(each.state, each.step, each.epoch) for each in statuses] == [("ended", 10, 1)] * 2


def test_a_disk_that_refuses_does_not_matter(tmp_path: Path) -> None:
    """The bulletin goes on, and ends in time."""
    (tmp_path / "status").write_text("no folder")
    bulletin = Bulletin(World(), tmp_path, Pulse())
    bulletin.start()
    bulletin.stop(RankState(rank=0, doing=Doing.RETURNED, how="ended"))
    assert not bulletin._thread.is_alive()
    assert (tmp_path / "status").read_text() == "no folder"


def test_states_in_words(tmp_path: Path) -> None:
    """From the pulse: starting, training, saving, alone, finishing, and how it ended."""
    pulse = Pulse()
    bulletin = Bulletin(World(), tmp_path, pulse)
    assert bulletin._state() == "starting"
    pulse.at_step(1)
    assert bulletin._state() == "training"
    with pulse.saving():
        assert bulletin._state() == "saving"
    with pulse.working_alone("an evaluation"):
        assert bulletin._state() == "alone: an evaluation"
    pulse.is_over = True
    assert bulletin._state() == "finishing"
    bulletin._ended = RankState(rank=0, doing=Doing.FAILED, how="failed with ValueError: no")
    assert bulletin._state() == "failed with ValueError: no"


def test_the_record_is_read_without_places_while_the_compiler_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would load it in this thread too, and break the loading in the other."""
    asked: list[bool] = []

    def dump(*, includeStackTraces: bool) -> bytes:  # noqa: N803 - torch's name
        asked.append(includeStackTraces)
        return pickle.dumps({"entries": [{"profiling_name": "gloo:all_reduce", "retired": False}]})

    compiler = types.ModuleType("torch._dynamo")
    compiler.__spec__ = importlib.machinery.ModuleSpec("torch._dynamo", None)
    monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)
    monkeypatch.setattr(sys.modules["torch._C._distributed_c10d"], "_dump_fr_trace", dump, raising=False)
    for is_loading in (True, False):
        compiler.__spec__._initializing = is_loading   # as importlib notes it
        pending = recorder.read().pending
        assert pending is not None
        assert pending.what == "all_reduce"
    assert asked == [False, True]


# What is seen from outside

def status(rank: int, **fields: Any) -> RankStatus:
    """A rank of two, of this process, that trains now."""
    return RankStatus(**{"rank": rank, "world_size": 2, "attempt": 0, "host": socket.gethostname(), "pid": os.getpid(),
                         "launcher_pid": os.getpid(), "time": time.time(), "state": "training", "phase": "backward",
                         "step": 147, "epoch": 2, "steps_per_second": 12.5, "memory_bytes": (301_000_000,), **fields})


def folder_with(tmp_path: Path, *statuses: RankStatus, lines: list[runlogs.Line] | None = None) -> Path:
    """A run's folder that was started two hours ago."""
    folder = runlogs.write(tmp_path / "mine", lines or [])
    os.utime(folder / "settings.json", (time.time() - 7200, time.time() - 7200))
    for each in statuses:
        each.write(folder / "status")
    return folder


GONE = 2 ** 22 + 1   # no process: beyond the largest id of Linux


def test_a_rank_that_was_killed_is_gone(tmp_path: Path) -> None:
    """Its process is not there; where its launcher is, the run is not over yet."""
    sight = look(folder_with(tmp_path, status(0), status(1, pid=GONE)))
    assert [rank.state for rank in sight.ranks] == ["training: backward", "gone, without a word; last seen: training"]
    assert not sight.is_over


def test_a_process_id_that_another_process_got_is_gone(tmp_path: Path) -> None:
    """The process is younger than the word of the rank."""
    sight = look(folder_with(tmp_path, status(0, time=time.time() - 7000.0), status(1)))
    assert sight.ranks[0].state == "gone, without a word; last seen: training"


@pytest.mark.parametrize(("age_seconds", "state"), [
    (2.0, "training: backward"), (20.0, "silent; last seen: training"),
    (100.0, "gone, without a word; last seen: training")])
def test_ranks_of_another_machine_are_told_by_their_age(tmp_path: Path, age_seconds: float, state: str) -> None:
    """Where the folder is on a shared disk."""
    sight = look(folder_with(tmp_path, status(0), status(1, host="another", time=time.time() - age_seconds)))
    assert sight.ranks[1].state == state


@pytest.mark.parametrize(("fields", "how", "is_over", "has_failed"), [
    ({}, "", False, True),
    ({"has_ended": True, "state": "ended"}, "finished", True, False),
    ({"has_ended": True, "state": "ended"}, "", False, False),        # the launcher is there
    ({"has_ended": True, "state": "failed", "launcher_pid": GONE}, "", True, True),
    ({"has_ended": True, "state": "failed", "launcher_pid": GONE}, "failed", True, True),
    ({"has_ended": True, "state": "ended", "launcher_pid": GONE}, "", True, False),
    ({"has_ended": True, "state": "failed"}, "failed", False, True),      # they may be started again
    ({"pid": GONE, "launcher_pid": GONE}, "", True, True)])
def test_when_a_run_is_over(tmp_path: Path, fields: dict[str, Any], how: str, is_over: bool, has_failed: bool) -> None:
    """When all its ranks have ended and nobody will start them again."""
    lines = [runlogs.start(), *([runlogs.end(147, 2, time.time(), how)] if how else [])]
    sight = look(folder_with(tmp_path, status(0, **fields), status(1, **fields), lines=lines))
    assert (sight.is_over, sight.has_failed) == (is_over, has_failed)


def test_a_run_that_has_just_been_started_is_not_over(tmp_path: Path) -> None:
    """Without a word, and with the words of the launch before; but not for ever."""
    folder = runlogs.write(tmp_path / "mine", [])
    assert not look(folder).is_over
    status(0, has_ended=True, launcher_pid=GONE, time=time.time() - 60).write(folder / "status")
    assert not look(folder).is_over
    os.utime(folder / "settings.json", (time.time() - 200, time.time() - 200))
    assert look(folder).is_over


def test_ranks_of_an_earlier_start_are_left_out(tmp_path: Path) -> None:
    """A run of four ranks goes on with two; and a rank of which nothing is known is missing."""
    old = [dataclasses.replace(status(rank), world_size=4, time=time.time() - 3000) for rank in range(4)]
    sight = look(folder_with(tmp_path, *old, status(1)))
    assert [rank.status.rank for rank in sight.ranks] == [1]
    assert sight.missing == (0,)
    assert "Rank 0: nothing is known" in tables.remarks(sight)[0]


def test_a_file_that_is_half_written_is_passed_over(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, status(0))
    (folder / "status" / "rank1.json").write_text('{"rank": 1, "wor')
    (folder / "status" / "rank2.json").write_text('{"rank": 2}')
    assert [each.rank for each in rankstatus.read(folder / "status")] == [0]


def shown(sight: Any, height: int = 40, width: int = 100) -> str:
    console = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(tables.screen(sight, height))
    console.file.close()
    return console.export_text()


def test_the_screen(tmp_path: Path) -> None:
    """Ranks side by side, and where their time goes, as it is on record."""
    lines = runlogs.training()[:-1]
    waits = "waits in all_reduce at train.py:12 in train"
    text = shown(look(folder_with(tmp_path, status(0, attempt=1), status(1, state=waits, attempt=1), lines=lines)))
    rows = [line.split() for line in text.splitlines()]
    assert "mine: fashion, mode ddp, 2 ranks, attempt 2" in text
    assert ["0", "147", "3", "12.5", "301", "MB", "0", "s", "ago", "training:", "backward"] in rows
    assert ["1", "147", "3", "12.5", "301", "MB", "0", "s", "ago", *waits.split()] in rows
    assert ["0", "16.5", "ms", "6.1", "%", "24", "%", "48", "%", "12", "%", "6.1", "%", "3.0", "%"] in rows
    assert "in the 10 steps to step 140" in text
    assert "accuracy 0.7" in text


def test_the_screen_holds_what_matters_of_many_ranks(tmp_path: Path) -> None:
    """Those that do not train come first; the screen is not longer than the terminal."""
    statuses = [dataclasses.replace(status(rank), world_size=64) for rank in range(64)]
    statuses[61] = dataclasses.replace(statuses[61], state="saving", phase="")
    text = shown(look(folder_with(tmp_path, *statuses)), height=24)
    assert "saving" in text
    assert "more ranks" in text
    assert len(text.splitlines()) <= 24


# The command

def call(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_watching_a_run_that_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how it ended, with the lines of its end, and comes back at once."""
    ended = {"has_ended": True, "state": "ended"}
    folder_with(tmp_path, status(0, **ended), status(1, **ended), lines=runlogs.training())
    assert call("watch", "mine", "--runs", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "mine: finished at step 147" in said
    assert "slowest rank 1" in said


def test_watching_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runlogs.write(tmp_path / "mine", [])
    assert call("watch", "mien", "--runs", str(tmp_path)) == 2
    assert "Did you mean mine?" in capsys.readouterr().err


def test_watching_can_be_stopped(tmp_path: Path) -> None:
    """Ctrl-C ends it with 130, and without a traceback."""
    folder_with(tmp_path, status(0), status(1))
    watching = subprocess.Popen([*RANKWISE, "watch", "mine", "--runs", str(tmp_path)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert "mine: fashion, 2 ranks" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (130, "")


RESTARTS = """
import os, time
import torch
import rankwise as rw
from torch import nn

def train(run: rw.Run) -> None:
    model = run.prepare(nn.Linear(3, 2))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in run.epochs(4):
        for batch in run.loader(torch.ones(50, 3), 10):
            time.sleep(0.15)
            run.step(model(batch).sum(), optimizer)
        run.save(wait=True)
        if epoch == 1 and run.rank == 1 and os.environ["RANKWISE_ATTEMPT"] == "0":
            raise ValueError("injured")

rw.launch(train)
"""


def on_terminal(command: list[str], folder: Path, deadline_seconds: float) -> tuple[int, str]:
    """A command on a terminal of its own; its exit code and all that it has written there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                               env={**os.environ, "COLUMNS": "110", "LINES": "30", "TERM": "xterm"})
    os.close(theirs)
    written, deadline = b"", time.monotonic() + deadline_seconds
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                part = os.read(ours, 65536)
            except OSError:   # the other end is closed
                break
            written += part
        return process.wait(timeout=10), written.decode("utf-8", "replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
def test_watching_a_run_through_a_restart(tmp_path: Path) -> None:
    """Begun before the first word, on a terminal: both attempts are seen, and it ends with the run."""
    (tmp_path / "script.py").write_text(RESTARTS)
    training = Launch([*RANKWISE, "run", "script.py", "--devices", "2", "--name", "mine", "--max-restarts", "1",
                       "--log-every", "5"], tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs" / "mine" / "settings.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    code, seen = on_terminal([sys.executable, "-m", "rankwise", "watch", "mine"], tmp_path, 90)
    ended = training.ended()
    assert ended.code == 0, ended.text
    assert code == 0, seen
    assert "training" in seen
    assert "attempt 2" in seen
    assert "mine: finished at step 20" in seen
    statuses = [json.loads((tmp_path / "runs" / "mine" / "status" / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [(each["attempt"], each["state"], each["step"]) for each in statuses] == [(1, "ended", 20)] * 2
