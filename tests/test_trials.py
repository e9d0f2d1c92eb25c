"""Trials: jobs of a target that end after some steps on every rank, and what they say of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rankwise.launcher.target import Target, resolve
from rankwise.settings import Settings
from rankwise.trials import Trial, Trials

TRAIN = '''
import time
import torch
import rankwise as rw

def train(run, epochs: int = 9, nap: float = 0.0, fail: bool = False):
    torch.manual_seed(3)
    model = run.prepare(torch.nn.Linear(6, 2))
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), 0.01))
    rows = torch.randn(23, 6, generator=torch.Generator().manual_seed(1))
    loader = run.loader(rows, 5)
    for _ in run.epochs(epochs):
        for batch in loader:
            time.sleep(nap)
            if fail and run.steps == 3:
                raise ValueError("a fault in the script")
            run.step(model(batch).square().mean(), optimizer)
        time.sleep(nap)

if __name__ == "__main__":
    rw.launch(train)
'''


@pytest.fixture
def target(tmp_path: Path) -> Target:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    return resolve(str(script))


def trials(target: Target, tmp_path: Path, *arguments: str) -> Trials:
    return Trials(target, arguments, Settings(threads=1, timeout=60.0), folder=tmp_path / "trials")


def test_a_trial_in_each_layout_ends_at_its_step_with_the_same_loss(target: Target, tmp_path: Path) -> None:
    """Every rank of each layout measures each step; the loss of the last is that of one device."""
    jobs = trials(target, tmp_path, "--nap", "0.01")
    told: list[int] = []
    alone = jobs.run(steps=6, warm_up=3, mode="single", arrivals=True)
    spread = jobs.run(steps=6, warm_up=3, mode="ddp", devices=3, tell=told.append)
    threads = jobs.run(steps=6, warm_up=3, mode="dp", devices=2)
    for trial, ranks in ((alone, 1), (spread, 3), (threads, 1)):
        assert trial.failure == ""
        assert [rank.rank for rank in trial.ranks] == list(range(ranks))
        for rank in trial.ranks:
            assert len(rank.step_seconds) == 6
            assert rank.samples == 28          # steps 4 to 9 of batches 5 5 5 5 3: 5 3 5 5 5 5
            assert rank.split["forward"] >= 0.01
            assert sum(rank.split.values()) == pytest.approx(sum(rank.step_seconds) / 6)
            assert rank.model == {"parameters": 14, "parameter_bytes": 56, "gradient_bytes": 56, "buffer_bytes": 0,
                                  "optimizer_bytes": 120}   # two moments, and a step count for each of two tensors
            assert rank.memory_bytes[0] > 1_000_000
        assert trial.start_up_seconds is not None
        assert trial.start_up_seconds > 0
        assert trial.loss is not None
        assert math.isclose(trial.loss, alone.loss or 0.0, rel_tol=1e-5)
    assert [size for size, _ in alone.ranks[0].arrivals] in ([8, 48], [48, 8])
    assert spread.ranks[1].wire_bytes >= 2 * 2 / 3 * 56
    assert spread.ranks[1].communication_total is not None
    assert all(steps <= 9 for steps in told)


def test_accumulation_counts_loop_bodies(target: Target, tmp_path: Path) -> None:
    trial = trials(target, tmp_path).run(steps=5, warm_up=5, mode="single", micro_batch=2)
    assert trial.ranks[0].micro_batches == 3 + 3 + 3 + 3 + 2
    assert trial.samples_per_second is not None


@pytest.mark.parametrize(("arguments", "changes", "words"), [
    (["--fail"], {"mode": "ddp", "devices": 2}, "a fault in the script"),
    (["--epochs", "1"], {"mode": "single"}, "ended before the 12 steps"),
    ([], {"mode": "single", "devices": 2}, "Mode single computes on one device"),
    (["--unknown"], {"mode": "single"}, "--unknown")])
def test_what_goes_wrong_is_in_the_result(target: Target, tmp_path: Path, arguments: list[str],
                                          changes: dict[str, object], words: str) -> None:
    trial = trials(target, tmp_path).run(steps=6, warm_up=6, arguments=arguments, **changes)
    assert words in trial.failure
    assert trial == Trial(failure=trial.failure)
