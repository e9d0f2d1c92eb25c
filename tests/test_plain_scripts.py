"""Scripts without a word of rankwise: the two usual tutorials, DistributedDataParallel and nn.DataParallel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launches import RANKWISE, Ended, only, run

pytestmark = pytest.mark.timeout(300)   # several whole interpreters each

DDP = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group(backend="nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    inputs = torch.arange(240, dtype=torch.float64).reshape(24, 10).sin()
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)

    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(10, 1, dtype=torch.float64).to(device), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        print(f"[rank {dist.get_rank()}] epoch {epoch} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "ddp_model.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

DATA_PARALLEL = """
import torch
from torch import nn

device = torch.device("cuda")
inputs = torch.arange(240, dtype=torch.float64).reshape(24, 10).sin().to(device)
targets = inputs.sum(1, keepdim=True)

torch.manual_seed(0)
model = nn.DataParallel(nn.Linear(10, 1, dtype=torch.float64)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for step in range(3):
        order = [row for rank in range(2) for row in range(rank + 8 * step, 8 * step + 8, 2)]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[order]), targets[order])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
torch.save(model.module.state_dict(), "dp_model.pth")
"""

ON_THE_CPU = {
    'backend="nccl"': 'backend="gloo"',
    "    torch.cuda.set_device(local_rank)\n": "",
    'torch.device("cuda", local_rank)': 'torch.device("cpu")',
    ", device_ids=[local_rank]": "",
    'torch.device("cuda")': 'torch.device("cpu")',
}


def for_the_cpu(script: str) -> str:
    for theirs, ours in ON_THE_CPU.items():
        script = script.replace(theirs, ours)
    return script


def trained_by_hand() -> dict[str, torch.Tensor]:
    """The same training in one process, with each gradient written out: rows of a step are 8 consecutive ones."""
    inputs = torch.arange(240, dtype=torch.float64).reshape(24, 10).sin()
    targets = inputs.sum(1, keepdim=True)
    torch.manual_seed(0)
    first = torch.nn.Linear(10, 1, dtype=torch.float64)
    weight, bias = first.weight.detach().clone(), first.bias.detach().clone()
    for _ in range(5):
        for step in range(3):
            x, y = inputs[8 * step:8 * step + 8], targets[8 * step:8 * step + 8]
            error = x @ weight.T + bias - y
            weight -= 0.1 * 2 * (error * x).mean(0, keepdim=True)
            bias -= 0.1 * 2 * error.mean(0)
    assert not torch.equal(weight, first.weight.detach())
    return {"weight": weight, "bias": bias}


def require_equal(file: Path) -> None:
    found, expected = torch.load(file, weights_only=True, map_location="cpu"), trained_by_hand()
    assert list(found) == ["weight", "bias"]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


def launched(script: str, folder: Path, *options: str) -> Ended:
    (folder / "tutorial.py").write_text(script)
    ended = run([*RANKWISE, "run", "tutorial.py", *options], folder)
    assert ended.code == 0, ended.text
    assert [line for line in ended.out.splitlines() if "epoch 4" in line], ended.text
    return ended


def test_a_ddp_script_on_gloo(tmp_path: Path) -> None:
    """DistributedDataParallel over env:// on two ranks trains as by hand; each rank's lines are in its log."""
    launched(for_the_cpu(DDP), tmp_path, "--devices", "2", "--accelerator", "cpu")
    require_equal(tmp_path / "ddp_model.pth")
    for rank in range(2):
        log = (only(tmp_path / "runs") / "logs" / f"rank{rank}.log").read_text()
        assert [line.split(" loss")[0] for line in log.splitlines()] == [
            f"[rank {rank}] epoch {epoch}" for epoch in range(5)]


def test_a_data_parallel_script_on_the_cpu(tmp_path: Path) -> None:
    """nn.DataParallel in one process trains as by hand, with two devices asked for in mode dp."""
    launched(for_the_cpu(DATA_PARALLEL), tmp_path, "--mode", "dp", "--devices", "2", "--accelerator", "cpu")
    require_equal(tmp_path / "dp_model.pth")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_scripts_unchanged_on_a_gpu(tmp_path: Path) -> None:
    """As written, on nccl and with every GPU that nn.DataParallel finds."""
    launched(DDP, tmp_path, "--devices", "1")
    launched(DATA_PARALLEL, tmp_path)
    require_equal(tmp_path / "dp_model.pth")
