"""Fault: every process takes the whole batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(48, 8)
targets = inputs.sin().sum(1, keepdim=True)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))
    for start in range(0, 48, 12):
        mine = order[start:start + 12]
        loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
