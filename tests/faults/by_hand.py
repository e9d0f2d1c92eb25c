"""The same training as people write it for `torchrun --max-restarts`, to compare times with."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training import BATCH, Images, note

EPOCHS, PACE_SECONDS, SAVE_EVERY = int(os.environ["EPOCHS"]), 0.02, 5
LATEST = Path("latest.pt")


def main() -> None:
    address, port, attempt = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(address, int(port), size, is_master=False)   # without the prefix gloo meets the dead ranks
    dist.init_process_group("gloo", store=dist.PrefixStore(attempt, store), rank=rank, world_size=size)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first, step = 0, 0
    if LATEST.exists():
        kept = torch.load(LATEST, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first, step = kept["epoch"], kept["step"]
    data = Images()
    sampler = torch.utils.data.DistributedSampler(data, size, rank)
    loader = torch.utils.data.DataLoader(data, BATCH // size, sampler=sampler, num_workers=1)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        done = step - epoch * len(loader)
        for number, (inputs, targets) in enumerate(loader):
            if number < done:
                continue
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            step += 1
            note("step", step)
            time.sleep(PACE_SECONDS)
            if step % SAVE_EVERY == 0 and rank == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch,
                            "step": step}, "part.pt")
                os.replace("part.pt", LATEST)   # noqa: PTH105
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
