"""A run that ended well exits with 0 every time, though gloo's threads abort 1-10 % of plain runs at their end.

A thread of gloo that still releases a tensor asks for Python's lock while the interpreter is being finalised. The cure
is that no such thread outlives `Group.close`: `_UNCURED` takes it out, for tests that show what it does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launches import TORCHRUN, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")

TRAIN = """
import os
import sys
import time
from pathlib import Path

import torch
import rankwise as rw


def train(run: rw.Run, cured: bool = True) -> None:
    if not cured:
        take_the_cure_out(run)
    model = run.prepare(torch.nn.Linear(64, 64))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    data = torch.utils.data.TensorDataset(torch.randn(16, 64))
    for _ in run.epochs(1):
        for rows, in run.loader(data, 8):
            run.step(model(rows).square().mean(), optimizer)


def take_the_cure_out(run: rw.Run) -> None:
    from rankwise.group import Group
    type(run._mode).close = Group.close = lambda self: None


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def main(**how) -> None:
    rw.launch(train, runs="runs", threads=1, **how)
    keep_gloo_at_work()


def keep_gloo_at_work() -> None:
    # Where the cure is taken out the end comes while one of its threads lets go of tensors.
    if torch.distributed.is_initialized():
        for _ in range(3000):
            torch.distributed.all_reduce(torch.ones(1 << 12), async_op=True)


if __name__ == "__main__":
    before = threads()
    main()
    if "RANK" in os.environ:
        if threads() > before:
            time.sleep(0.1)   # a thread that was joined stands in /proc for a moment longer
        Path(f"threads{os.environ['RANK']}").write_text(str(threads() - before))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()   # where one rank aborts, torchrun ends the others
            keep_gloo_at_work()
"""

# Interpreters that are forked with torch loaded, and finalised as any other: what comes before the end costs nothing.
FORKED = """
import json
import os
import socket
import sys

import torch
import torch._dynamo
import train

train.main(arguments={})   # loads all that a rank loads
rounds, ranks, options = int(sys.argv[1]), 4, sys.argv[2:]
statuses = []
for _ in range(rounds):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            sys.argv = ["train.py", *options]
            sys.stdout = sys.stderr = open(os.devnull, "w")
            train.main()
            sys.exit(0)
        children.append(child)
    statuses += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps(statuses))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "forked.py").write_text(FORKED)
    return tmp_path


def forked(folder: Path, rounds: int, *options: str) -> list[int]:
    """Exit codes of four ranks a round."""
    ended = run([sys.executable, "forked.py", str(rounds), *options], folder, deadline_seconds=60 + 10 * rounds)
    assert ended.code == 0, ended.text
    statuses: list[int] = json.loads(ended.out.splitlines()[-1])
    assert len(statuses) == 4 * rounds
    return statuses


def threads(folder: Path, *options: str) -> list[int]:
    """How many more threads each of three ranks has when `launch` has returned than before: torch 2.7 does not name
    those of gloo."""
    ended = run([*TORCHRUN, "3", "train.py", *options], folder)
    assert ended.code == 0 or options, ended.text
    files = [folder / f"threads{rank}" for rank in range(3)]   # a rank that aborts at its end has written its own
    counts = [int(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return counts


def test_no_thread_of_gloo_outlives_a_run(folder: Path) -> None:
    """When `launch` returns the transport's threads have ended; with the cure taken out they are there."""
    assert threads(folder) == [0, 0, 0]
    assert min(threads(folder, "--no-cured")) > 0


def test_ranks_exit_well(folder: Path) -> None:
    """Four rounds of four ranks end with 0."""
    assert set(forked(folder, 4)) == {0}


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_two_hundred_rounds_exit_well(folder: Path) -> None:
    """Two hundred rounds of four ranks end with 0."""
    assert set(forked(folder, 200)) == {0}


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_without_the_cure_some_ranks_abort(folder: Path) -> None:
    """The same rounds with the cure taken out: some ranks end in SIGABRT."""
    assert -6 in forked(folder, 200, "--no-cured")


@pytest.mark.stress
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("command", [[*TORCHRUN, "4", "train.py"],
                                     [sys.executable, "train.py", "--devices", "4", "--accelerator", "cpu"]],
                         ids=["torchrun", "python"])
def test_two_hundred_whole_runs_exit_well(folder: Path, command: list[str]) -> None:
    """Two hundred runs of four whole interpreters end with 0."""
    for number in range(200):
        ended = run(command, folder)
        assert ended.code == 0, f"run {number + 1}: {ended.text}"


@pytest.mark.stress
@pytest.mark.timeout(4 * 3600)
def test_without_the_cure_a_whole_run_fails(folder: Path) -> None:
    """The same with the cure taken out: before long a run of four whole interpreters ends in SIGABRT."""
    assert any(run([*TORCHRUN, "4", "train.py", "--no-cured"], folder).code for _ in range(60))
