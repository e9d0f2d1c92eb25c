"""`rankwise verify` as a command: what it prints, its exit codes, and that nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launches import RANKWISE, Ended, run

pytestmark = pytest.mark.timeout(300)   # several whole launches each

PLAIN = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(48, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)   # the tutorials' way: 8 samples on each rank
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * LR)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("the script ended")
dist.destroy_process_group()
"""

LEAVES = """
import torch
from torch import nn

import rankwise as rw


def train(run: rw.Run) -> None:
    inputs = torch.randn(32, 4)
    model = run.prepare(nn.Linear(4, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    for _ in run.epochs(2):
        for number, (x,) in enumerate(run.loader((inputs,), 8)):
            if run.rank == 1 and number == 2:
                return
            run.step(model(x).square().mean(), optimizer)


if __name__ == "__main__":
    rw.launch(train)
"""


def verified(folder: Path, target: str, *options: str) -> Ended:
    ended = run([*RANKWISE, "verify", target, "--worlds", "1,2", "--accelerator", "cpu", *options], folder, 200.0)
    assert "Traceback" not in ended.err, ended.text
    return ended


def test_a_recipe_is_the_same_training(tmp_path: Path) -> None:
    """Exit code 0, a line for each layout, no output of the ranks, and no run folder left."""
    ended = verified(tmp_path, "toy", "--steps", "5")
    assert ended.code == 0, ended.text
    lines = [line.split() for line in ended.out.splitlines()]
    assert [line[:5] for line in lines if "the" in line[3:4]] == [["dp", "on", "2", "the", "same"],
                                                                  ["ddp", "on", "2", "the", "same"]], ended.text
    assert "The same training in 3 layouts, over 5 steps." in ended.out
    assert "epoch" not in ended.out.split("Every step")[0]
    assert not list(tmp_path.iterdir())


def test_a_plain_script_whose_batch_grows(tmp_path: Path) -> None:
    """The usual tutorial: the batch size is each rank's own. JSON, exit code 1, and what else is wrong beneath."""
    (tmp_path / "plain.py").write_text(PLAIN.replace("LR", "dist.get_world_size()"))
    ended = verified(tmp_path, "plain.py", "--steps", "4", "--json")
    assert ended.code == 1, ended.text
    found = json.loads(ended.out)
    assert found["verdict"] == "differs"
    assert [each["layout"] for each in found["layouts"]] == ["ddp on 2"]   # a plain script has no dp
    assert [each["code"] for each in found["findings"]] == ["learning_rate_scaled", "batch_size_scaled"]
    assert found["layouts"][0]["first_samples"] == 1
    assert "8 + 8 on the ranks" in found["findings"][1]["seen"]


def test_a_script_that_cannot_run(tmp_path: Path) -> None:
    """Exit code 2, its own message, and with --json an object that says so."""
    (tmp_path / "broken.py").write_text("raise ValueError('no data here')\n")
    ended = run([*RANKWISE, "verify", "broken.py", "--worlds", "1,2", "--modes", "ddp", "--json"], tmp_path)
    assert ended.code == 2, ended.text
    assert json.loads(ended.out)["verdict"] == "could not run"
    assert "no data here" in ended.err
    ended = run([*RANKWISE, "verify", "missing.py"], tmp_path)
    assert ended.code == 2, ended.text


def test_a_rank_that_stops_earlier(tmp_path: Path) -> None:
    """Is told as such, with the steps of each rank, and does not wait for a time limit."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    ended = verified(tmp_path, "leaves.py", "--modes", "ddp", "--tolerance", "1e-4", "--timeout", "60")
    assert ended.code == 1, ended.text
    assert "unequal_steps" in ended.out
    assert "rank 1: 2 steps" in ended.out
    assert "waited for it" in ended.out or "left the loop" in ended.out


def test_options_are_explained_and_checked(tmp_path: Path) -> None:
    """The help tells the exit codes and shows examples; words that cannot be used have exit code 2."""
    shown = run([*RANKWISE, "verify", "--help"], tmp_path)
    assert shown.code == 0
    assert "Exit code: 0 the same training" in shown.out
    assert "rankwise verify fashion" in shown.out
    wrong = run([*RANKWISE, "verify", "toy", "--worlds", "some"], tmp_path)
    assert wrong.code == 2
    assert "--worlds has some." in wrong.err
