"""`rankwise compare` as a command, and trials of plain torch scripts: whole jobs, and nothing is left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launches import RANKWISE, Launch, wait_for
from rankwise.compare.layouts import choose
from rankwise.compare.rounds import measure
from rankwise.compare.scaling import Scaling
from rankwise.launcher.target import resolve
from rankwise.settings import Settings
from rankwise.trials import Trials

pytestmark = pytest.mark.timeout(300)   # several whole launches each

SECONDS_A_ROW = 0.004   # of waiting: two devices have half of it each, whatever the machine does besides

SLEEPS = f"""
import time
from pathlib import Path

import torch
from torch import nn

import rankwise as rw


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        time.sleep({SECONDS_A_ROW} * len(x))
        return self.layer(x)


def train(run: rw.Run, batch_size: int = 11) -> None:
    inputs = torch.randn(44, 4)
    model = run.prepare(Slow())
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    for _ in run.epochs(1000):
        for (x,) in run.loader((inputs,), batch_size, shuffle=True):
            run.step((model(x) - x.sum(1, keepdim=True)).square().mean(), optimizer)
            Path("begun").touch()


if __name__ == "__main__":
    rw.launch(train)
"""

PLAIN = """
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(8, 1))
optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2))
for step in range(7):
    time.sleep(0.03 if dist.get_rank() == 1 else 0.0)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    other.step()
    optimizer.zero_grad()
raise ValueError("the script went on")
"""


def test_layouts_of_a_real_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of two layouts: times that hold the known waits, and the same loss on one device and on two."""
    monkeypatch.chdir(tmp_path)   # the script leaves a file there
    script = tmp_path / "slow.py"
    script.write_text(SLEEPS)
    trials = Trials(resolve(str(script)), [], Settings(threads=1), folder=tmp_path)
    choice = choose(Settings(), devices="2", modes="ddp", amp="no", uses_rankwise=True)
    told: list[tuple[str, int]] = []
    measured = measure(trials, choice, Scaling(batch_size=22), steps=6, rounds=1,
                       tell=lambda what, steps: told.append((what, steps)))
    for series, rows in ((measured.baseline, 22), (measured.control, 22), (measured.others[0], 11)):
        found = series.rounds[0]
        assert found.split is not None
        assert found.split["forward"] >= rows * SECONDS_A_ROW
        assert found.step_seconds >= rows * SECONDS_A_ROW
        assert (found.steps, found.samples_a_step) == (6, 22)
        assert found.most_memory_bytes is not None
        assert found.most_memory_bytes > 1_000_000
        assert found.start_up_seconds is not None
        assert found.start_up_seconds > 0
    pair, alone = measured.others[0].rounds[0], measured.baseline.rounds[0]
    assert pair.communication_seconds is not None
    assert pair.split is not None
    assert pair.communication_seconds >= pair.split["communication"] > 0
    assert alone.loss is not None
    assert pair.loss == pytest.approx(alone.loss, rel=1e-5)
    assert {what for what, _ in told} == {"single on 1, round 1 of 1", "ddp on 2, round 1 of 1",
                                          "single on 1, again, round 1 of 1"}


def test_an_interrupt_ends_every_job(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a trial: exit code 130, no file of a result, and no process."""
    (tmp_path / "slow.py").write_text(SLEEPS)
    launch = Launch([*RANKWISE, "compare", "slow.py", "--devices", "2", "--modes", "ddp", "--steps", "100000",
                     "--output", "out"], tmp_path)
    wait_for([tmp_path / "begun"])
    launch.process.send_signal(signal.SIGINT)
    ended = launch.ended(30)
    assert ended.code == 130, ended.text
    assert "Traceback" not in ended.err
    assert not list((tmp_path / "out").iterdir())


def test_a_plain_script_is_timed_from_outside(tmp_path: Path) -> None:
    """Steps are those of the first optimizer, on every rank; the script ends after them, and not in its own way."""
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    trials = Trials(resolve(str(script)), [], Settings(threads=1), folder=tmp_path)
    trial = trials.run(steps=4, warm_up=2, mode="ddp", devices=2)
    assert trial.failure == ""
    assert [len(rank.step_seconds) for rank in trial.ranks] == [4, 4]
    assert all(seconds >= 0.03 for seconds in trial.step_seconds)
    assert (trial.split, trial.loss, trial.samples_per_second) == ({}, None, None)
    assert all(rank.memory_bytes[0] > 1_000_000 for rank in trial.ranks)
    longer = trials.run(steps=40, warm_up=2, mode="single", devices=1)
    assert "ValueError: the script went on" in longer.failure
