"""Stalls and lost ranks: every kind is told with the right rank and line, and what only takes its time is left alone.

The ranks are real, with what `rankwise run` gives them; only the launcher is left out, but in the last tests.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from launches import RANKWISE, TORCHRUN, run
from rankwise.launcher.failure import first
from rankwise.launcher.job import Job
from rankwise.settings import Settings
from warm import failures_of

pytestmark = pytest.mark.timeout(120)

STALL_SECONDS = 2.0

PLAIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

class Samples(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((3,), float(index))

def update(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()

"""

# In each script one rank does what the others do not; `# !` marks the line that must be named.

SKIPS = PLAIN + """
def share(batch):
    loss, rows = torch.ones(1), torch.ones(1)
    if rank != 1 or len(batch) == 4:
        dist.all_reduce(loss)   # !
    dist.all_reduce(rows)

for batch in DataLoader(Samples(), batch_size=4):
    update(batch)
    share(batch)
time.sleep(100)
"""

EXTRA_BATCH = PLAIN.replace("model(batch).sum().backward()", "model(batch).sum().backward()   # !") + """
for batch in DataLoader(Samples(), batch_size=4 if rank != 1 else 3):
    update(batch)
"""

RAISES = PLAIN + """
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values

    @staticmethod
    def backward(context, gradient):
        raise ValueError("no way back")   # !

for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    if rank == 1 and number == 2:
        batch = Reversed.apply(batch.requires_grad_())
    update(batch)
"""

SLEEPS_IN_DATA = PLAIN + """
class Slow(Samples):
    def __getitem__(self, index):
        if rank == 1 and index == 9:
            time.sleep(100)   # !
        return super().__getitem__(index)

for batch in DataLoader(Slow(), batch_size=4):
    update(batch)
"""

# The ranks of these tests come from a forkserver, and would start their workers by it; those of a launch fork them.
FORKS = """
import multiprocessing
multiprocessing.set_start_method("fork", force=True)
"""

SLEEPS_IN_WORKER = FORKS + SLEEPS_IN_DATA.replace("batch_size=4", "batch_size=4, num_workers=2")

READS_IN_WORKERS = FORKS + """
import time
import torch
import rankwise as rw

class Samples:
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((3,), float(self.waited(index)))

    def waited(self, index):
        if self.rank == 1 and index > 12:
            time.sleep(100)   # !
        return index

def train(run: rw.Run) -> None:
    for batch in run.loader(Samples(run.rank), batch_size=3, shuffle=False, num_workers=2):
        run.barrier()

rw.launch(train)
"""

EXITS = PLAIN + """
for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    update(batch)
    if rank == 1 and number == 2:
        sys.exit(0)   # !
"""

EVALUATES_ALONE = PLAIN + """
for batch in DataLoader(Samples(), batch_size=4):
    update(batch)
if rank == 0:
    with torch.no_grad():
        for batch in DataLoader(Samples(), batch_size=8):
            model(batch)   # !
dist.barrier()
"""

STOPS = PLAIN + """
for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    update(batch)
    if rank == 1 and number == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
"""

WORKS_ALONE = PLAIN + """
for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    update(batch)
    if rank == 0 and number == 2:
        time.sleep(100)   # !
"""

OTHER_SHAPE = PLAIN + """
for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    update(batch)
    dist.all_reduce(torch.ones(3 if rank == 1 and number == 2 else 4))   # !
"""

BRANCHES = """
import torch
import rankwise as rw

def train(run: rw.Run) -> None:
    if run.rank == 2:
        run.gather(torch.ones(2))   # !
    else:
        run.barrier()
    run.barrier()

rw.launch(train)
"""


ALONE_IN_WORKER = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(100)   # !
        return index

print("begins")
for batch in DataLoader(Samples(), batch_size=3, num_workers=1):
    pass
print("ends")
"""


def line_of(script: str) -> int:
    """The number of the line that must be named."""
    return next((number for number, text in enumerate(script.splitlines(), 1) if text.endswith("# !")), 0)


def seconds_stood(text: str, then: str = "") -> float:
    """For how long no rank has moved, as a report says; 0 where it is none. A busy machine may take a moment more."""
    found = re.search(r"The run stalled: no rank has moved for (\d+) s\." + re.escape(then), text)
    return float(found[1]) if found else 0.0


class Ended:
    """A script that was run in so many ranks, in this folder, until it stalled: what it said and what it left."""

    def __init__(self, script: str, ranks: int, folder: Path, **settings: Any) -> None:
        (folder / "train.py").write_text(script)
        chosen = Settings(**{"devices": ranks, "accelerator": "cpu", "threads": 1, "stall_timeout": STALL_SECONDS,
                             "mode": "ddp", **settings})
        self.failures = failures_of(Job(script=str(folder / "train.py"), argv=["train.py"]), chosen, folder / "run")
        self.stalls = folder / "run" / "stalls"
        self.line = f"train.py:{line_of(script)}"
        report = self.stalls / "report.txt"
        self.report = report.read_text() if report.exists() else ""
        self.text = self.failures[first(self.failures)].text if self.failures else ""

    def of(self, ranks: str) -> str:
        """The line of the report that is about these ranks."""
        lines = map(str.strip, self.report.splitlines())
        found, = (line for line in lines if line.startswith((f"{ranks},", f"{ranks}:")))
        return found

    def cause(self) -> str:
        return self.report.split("Likely cause: ")[1].splitlines()[0]

    def require_stall(self, *ranks: int) -> None:
        """These ranks have said that the run stalled; all of them tell the same, and each has left its stacks."""
        assert set(ranks) <= set(self.failures)
        assert seconds_stood(self.text) >= STALL_SECONDS
        assert all(self.text in self.failures[rank].text for rank in ranks)
        assert [self.failures[rank].exit_code for rank in ranks] == [1] * len(ranks)
        assert sorted(not self.failures[rank].follows for rank in ranks) == [False] * (len(ranks) - 1) + [True]
        for rank in ranks:
            assert "Thread MainThread" in (self.stalls / f"rank{rank}.txt").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Stalls


def test_a_rank_that_skips_a_collective(folder: Path) -> None:
    """The calls after it have one size and meet in silence; torch's record of them shows which one was left out."""
    ended = Ended(SKIPS, 3, folder)
    ended.require_stall(0, 1, 2)
    assert ended.cause().startswith(f"Rank 0 called all_reduce (float [1]) at {ended.line} in share, which rank 1 did "
                                    "not: a branch that depends on the rank.")
    assert "waiting in all_reduce (float [1]), collective" in ended.of("Ranks 0 and 2")


def test_a_rank_that_sleeps_in_its_data_set(folder: Path) -> None:
    """The line in the data set is named, and the place in the loop that asked it; the other waits in its forward."""
    ended = Ended(SLEEPS_IN_DATA, 2, folder)
    ended.require_stall(0, 1)
    assert f"reading data at {ended.line} in __getitem__, called from train.py:" in ended.of("Rank 1")
    assert ended.of("Rank 0").startswith("Rank 0, step 2: waiting in broadcast (float [10]), collective")
    assert ended.cause() == "The data: rank 1 waits for a batch."
    assert "in __getitem__" in (ended.stalls / "rank1.txt").read_text()


def test_a_data_worker_that_sleeps(folder: Path) -> None:
    """In a plain torch DataLoader: the line in the loop, and the one in the process that reads for it."""
    ended = Ended(SLEEPS_IN_WORKER, 2, folder)
    ended.require_stall(0, 1)
    assert ended.of("Rank 1").startswith("Rank 1, step 2: reading data at train.py:")
    assert f"; in its data workers at {ended.line} in __getitem__; last progress" in ended.of("Rank 1")
    assert "in its data workers" not in ended.of("Rank 0")
    assert ended.cause() == "The data: rank 1 waits for a batch."
    stacks = (ended.stalls / "rank1.txt").read_text()
    assert stacks.count("\nData worker ") == 2   # the other one waits for a request
    assert "in _worker_loop" in stacks
    assert "Data worker" not in (ended.stalls / "rank0.txt").read_text()


def test_data_workers_of_a_run_that_sleep(folder: Path) -> None:
    """In run.loader: the data set's own functions, none of ours between them."""
    ended = Ended(READS_IN_WORKERS, 2, folder)
    ended.require_stall(0, 1)
    assert f"; in its data workers at {ended.line} in waited, called from train.py:" in ended.of("Rank 1")
    assert ended.of("Rank 1").count(" in __getitem__") == 1
    assert ended.cause() == "The data: rank 1 waits for a batch."


def test_rank_0_evaluates_alone_through_the_wrapped_model(folder: Path) -> None:
    """Its forward broadcasts buffers, and the others wait in a barrier: both lines, and who is alone."""
    ended = Ended(EVALUATES_ALONE, 4, folder)
    ended.require_stall(0, 1, 2, 3)
    assert f"of rank 0 was broadcast (float [10]) at {ended.line} in <module>" in ended.text
    assert "waiting in barrier, collective" in ended.of("Ranks 1, 2 and 3")
    assert "on: work that rank 0 does alone." in ended.cause()


def test_rank_0_works_alone(folder: Path) -> None:
    """Work that is not declared: its line, and what to do."""
    ended = Ended(WORKS_ALONE, 3, folder)
    ended.require_stall(0, 1, 2)
    assert ended.of("Rank 0").startswith(f"Rank 0, step 3: working at {ended.line} in <module>")
    assert ended.cause() == "Rank 0 works alone, and the others wait for it."
    assert "run.alone()" in ended.text


def test_a_stopped_rank(folder: Path) -> None:
    """A process that was stopped does not answer; what was heard of it last is told, and the others end."""
    ended = Ended(STOPS, 3, folder)
    ended.require_stall(0, 2)
    assert ended.of("Rank 1").startswith("Rank 1: no answer")
    assert ended.cause().startswith("Rank 1 did not answer")
    assert not (ended.stalls / "rank1.txt").exists()


def test_tensors_of_different_shape(folder: Path) -> None:
    """Plain gloo adds them up without an error and is out of step afterwards; --debug and verify tell it at once."""
    ended = Ended(OTHER_SHAPE, 3, folder)
    ended.require_stall(0, 1, 2)
    assert f"of rank 1 was all_reduce (float [3]) at {ended.line} in <module>" in ended.text
    assert f"of rank 0 was all_reduce (float [4]) at {ended.line} in <module>" in ended.text
    assert ended.cause().endswith("has tensors of another shape or kind on some ranks.")


def test_with_debug_different_shapes_are_told_before_they_meet(folder: Path) -> None:
    """No stall is waited for: both ranks, shapes and lines."""
    ended = Ended(OTHER_SHAPE, 2, folder, debug=True)
    assert f"Rank 1: all_reduce SUM float32 [3] at {ended.line}" in ended.text
    assert not ended.stalls.exists()


def test_ranks_that_take_different_branches(folder: Path) -> None:
    """In a training of rankwise: the line of each side, ours and the user's."""
    ended = Ended(BRANCHES, 3, folder)
    ended.require_stall(0, 1, 2)
    assert f"at {ended.line} in train, called from train.py:" in ended.of("Rank 2")
    assert "rankwise/group.py" in (ended.stalls / "rank2.txt").read_text()
    assert "of rank 2 was all_gather" in ended.text
    assert f" at {ended.line} in train.\n" in ended.text


# Lost ranks


def test_a_rank_with_an_extra_batch(folder: Path) -> None:
    """A plain loop: who ended, after which step, and the line where the other waits."""
    ended = Ended(EXTRA_BATCH, 2, folder)
    assert set(ended.failures) == {1}
    assert "Connection closed by peer" in ended.text
    assert ended.of("Rank 0") == "Rank 0, step 6: ended."
    assert f"at {ended.line} in update" in ended.of("Rank 1")
    assert ended.cause() == "Uneven number of steps: rank 0 ended after step 6, and rank 1 went on."


def test_a_rank_that_exits_early(folder: Path) -> None:
    """sys.exit(0) fails nobody's checks; the line that called it is named."""
    ended = Ended(EXITS, 3, folder)
    assert set(ended.failures) == {0, 2}
    assert ended.of("Rank 1") == f"Rank 1, step 3: ended with sys.exit(0) at {ended.line} in <module>."
    assert ended.cause() == "Uneven number of steps: rank 1 ended after step 3, and ranks 0 and 2 went on."
    assert ended.of("Rank 1") in ended.text


def test_a_rank_that_raises_in_backward(folder: Path) -> None:
    """Its own traceback is the failure that counts; the report has where the others were."""
    ended = Ended(RAISES, 3, folder)
    assert ended.text.endswith("ValueError: no way back")
    assert f'{ended.line.replace("train.py:", "line ")}, in backward' in ended.text
    assert ended.of("Rank 1").startswith(
        f"Rank 1, step 2: failed with ValueError: no way back at {ended.line} in backward, called from train.py:")
    assert "waiting in " in (ended.of("Rank 0") if "  Rank 0," in ended.report else ended.of("Ranks 0 and 2"))
    assert ended.cause() == "Rank 1 failed, and the others wait for it."


# One rank alone


def test_one_rank_alone_in_its_data(folder: Path) -> None:
    """The same report: its own line, and that of the worker it waits for."""
    ended = Ended(SLEEPS_IN_WORKER.replace("rank == 1", "rank == 0"), 1, folder)
    ended.require_stall(0)
    assert ended.of("Rank 0").startswith("Rank 0, step 2: reading data at train.py:")
    assert f"; in its data workers at {ended.line} in __getitem__; last progress" in ended.of("Rank 0")
    assert ended.cause() == "The data: rank 0 waits for a batch."


def test_one_rank_alone_in_its_work(folder: Path) -> None:
    """There is nobody for whom it could wait."""
    ended = Ended(WORKS_ALONE, 1, folder)
    ended.require_stall(0)
    assert ended.of("Rank 0").startswith(f"Rank 0, step 3: working at {ended.line} in <module>")
    assert ended.cause() == "Nothing moves, and no rank waits for another."


# What is no stall


ALONE = """
import time
import rankwise as rw

def train(run: rw.Run) -> None:
    with run.alone() as mine:
        if mine:
            time.sleep(4)

rw.launch(train)
"""

SLOW_DATA = PLAIN + """
class Slow(Samples):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(0.6)
        return super().__getitem__(index)

for batch in DataLoader(Slow(), batch_size=1 + rank):
    pass
"""

COMPUTES = PLAIN + """
started = time.monotonic()
while rank == 0 and time.monotonic() - started < 4:
    torch.ones(64, 64) @ torch.ones(64, 64)
dist.barrier()
"""


CHILD_COMPUTES = """
import subprocess, sys
import torch

subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 3: pass"], check=True)
"""

THREADS_COMPUTE = """
import threading, time
import torch

def compute():
    while time.monotonic() - started < 4:
        torch.ones(64, 64) @ torch.ones(64, 64)

started = time.monotonic()
thread = threading.Thread(target=compute)
thread.start()
thread.join()
"""

FAILS = """
import rankwise as rw

def train(run: rw.Run) -> None:
    raise ValueError("upside down")

rw.launch(train)
"""


@pytest.mark.parametrize("script", [ALONE, SLOW_DATA, COMPUTES, CHILD_COMPUTES, THREADS_COMPUTE],
                         ids=["alone", "slow data", "evaluation in Python", "a child process", "another thread"])
def test_what_takes_its_time_on_one_rank_is_left_alone(folder: Path, script: str) -> None:
    """The same, and whatever computes in its process or in a child process: no other rank can be waited for."""
    ended = Ended(script, 1, folder)
    assert ended.failures == {}
    assert not ended.stalls.exists()


def test_a_failure_of_one_rank_alone_is_told_without_a_report(folder: Path) -> None:
    """There are no other ranks to tell of."""
    ended = Ended(FAILS, 1, folder)
    assert ended.text.endswith("ValueError: upside down")
    assert not ended.stalls.exists()


@pytest.mark.parametrize("script", [ALONE, SLOW_DATA, COMPUTES], ids=["alone", "slow data", "evaluation in Python"])
def test_what_takes_its_time_is_left_alone(folder: Path, script: str) -> None:
    """Declared work, batches that come slowly, and computing without a sign of progress, longer than the limit."""
    ended = Ended(script, 2, folder)
    assert ended.failures == {}
    assert not ended.stalls.exists()


def test_without_a_limit_nothing_is_ended(folder: Path) -> None:
    """--stall-timeout 0 leaves everything to the limits of the collectives."""
    ended = Ended(WORKS_ALONE.replace("sleep(100)", "sleep(4)"), 2, folder, stall_timeout=0.0)
    assert ended.failures == {}


# Whole launches


def test_a_launch_ends_with_its_stopped_rank(folder: Path) -> None:
    """`rankwise run` shows the report, ends with 1, and leaves no process: the stopped one is killed."""
    (folder / "train.py").write_text(STOPS)
    ended = run([*RANKWISE, "run", "train.py", "--devices", "2", "--accelerator", "cpu", "--name", "it",
                 "--stall-timeout", "2"], folder)
    assert ended.code == 1, ended.text
    assert seconds_stood(ended.err) >= 2
    assert "Rank 1: no answer" in ended.err
    assert ended.err.count("Likely cause: Rank 1 did not answer") == 1
    assert "Rank 0 of 2 failed: The run stalled; this rank saw it first." in ended.err
    assert (folder / "runs" / "it" / "stalls" / "report.txt").exists()


def test_under_torchrun_the_rank_tells_of_it(folder: Path) -> None:
    """A training of rankwise that torchrun started prints its report itself."""
    (folder / "train.py").write_text(BRANCHES)
    ended = run([*TORCHRUN, "3", "train.py", "--accelerator", "cpu", "--name", "it", "--stall-timeout", "2"], folder)
    assert ended.code == 1, ended.text
    assert ended.err.startswith("The run stalled: no rank has moved for ")   # then comes what torchrun says
    assert (folder / "runs" / "it" / "stalls" / "rank2.txt").exists()


def test_a_command_that_is_the_only_rank(folder: Path) -> None:
    """`rankwise run` on one device runs a plain script itself: it ends, and the worker that sleeps ends with it."""
    (folder / "train.py").write_text(ALONE_IN_WORKER)
    ended = run([*RANKWISE, "run", "train.py", "--devices", "1", "--accelerator", "cpu", "--name", "it",
                 "--stall-timeout", "2"], folder)
    assert ended.code == 1, ended.text
    assert ended.out == "begins\n"
    assert ended.err.startswith("The run stalled: ")
    assert seconds_stood(ended.err, then="\n  Rank 0, step 0: reading data at ") >= 2
    assert f"; in its data workers at train.py:{line_of(ALONE_IN_WORKER)} in __getitem__;" in ended.err
    assert "called from" not in ended.err   # the frames of the command are not the user's
    assert "Traceback" not in ended.err
    assert ended.err in (folder / "runs" / "it" / "logs" / "rank0.log").read_text()
    assert "Data worker" in (folder / "runs" / "it" / "stalls" / "rank0.txt").read_text()


def test_a_script_that_is_the_only_rank(folder: Path) -> None:
    """`python train.py` with a training of rankwise."""
    script = READS_IN_WORKERS.replace("rank == 1", "rank == 0").replace(FORKS, "")
    (folder / "train.py").write_text(script)
    ended = run([sys.executable, "train.py", "--accelerator", "cpu", "--name", "it", "--stall-timeout", "2"], folder)
    assert ended.code == 1, ended.text
    assert seconds_stood(ended.err, then="\n  Rank 0, step 0: reading data at ") >= 2
    assert f"; in its data workers at train.py:{line_of(script)} in waited, called from train.py:" in ended.err
    assert "Traceback" not in ended.err


def test_one_rank_is_started_again_after_a_stall(folder: Path) -> None:
    """With --max-restarts a launcher of ours stands by; the second attempt does not sleep."""
    (folder / "train.py").write_text(ALONE_IN_WORKER.replace("time.sleep(100)", """if not os.path.exists("slept"):
            open("slept", "w").close()
            time.sleep(100)"""))
    ended = run([*RANKWISE, "run", "train.py", "--devices", "1", "--accelerator", "cpu", "--name", "it",
                 "--stall-timeout", "2", "--max-restarts", "1"], folder)
    assert ended.code == 0, ended.text
    assert ended.out == "begins\nbegins\nends\n"
    assert "rank 0 of 1 failed" in ended.err
    assert "The run stalled" in ended.err
