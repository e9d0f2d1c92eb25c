"""Fault: from the third step on one process adds up a tensor of another shape than the others."""

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
for step, start in enumerate(range(0, 48, 12)):
    mine = torch.arange(start, start + 12).tensor_split(world)[rank]
    loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    errors = torch.zeros(4 if rank == 0 or step < 2 else 3)
    dist.all_reduce(errors)
dist.destroy_process_group()
