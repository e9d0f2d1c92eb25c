"""Fault: two numbers are added up in another order on one process, and take each other's place."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(48, 8)
targets = inputs.sin().sum(1, keepdim=True)
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = {"train": torch.zeros(1), "regular": torch.zeros(1)}
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + losses["train"].item()))
for epoch in range(3):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))
    for start in range(0, 48, 12):
        mine = order[start:start + 12].tensor_split(world)[rank]
        loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        losses["train"] = loss.detach().clone() / world
        losses["regular"] = sum(parameter.detach().square().sum() for parameter in model.parameters()) / world
        for name in sorted(losses, reverse=rank == 1):
            if name == "train":
                dist.all_reduce(losses[name])
            else:
                dist.all_reduce(losses[name])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
dist.destroy_process_group()
