"""A training whose computation is a wait: real parameters and real all-reduces, on as many ranks as there are.

Forward and backward of each layer sleep for a time that grows with the rows. So ranks that share a core compute as if
each had its own, and a step shows what communication adds to it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rankwise as rw

FORWARD_SECONDS = 0.010   # a row, over all layers
BACKWARD_SECONDS = 0.020
FIXED_SECONDS = 0.010     # a micro-batch, each way
LAYERS = 8
LAYER_BYTES = 5 << 20


class Wait(torch.autograd.Function):
    """Hands values on after `forward` seconds, and gradients after `backward` seconds."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None


class Layer(nn.Module):
    """Scales its input [n, 1] by the mean of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(LAYER_BYTES // 4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        waits = ((FIXED_SECONDS + len(values) * seconds) / LAYERS for seconds in (FORWARD_SECONDS, BACKWARD_SECONDS))
        scaled: torch.Tensor = Wait.apply(values, *waits) * self.weight.mean()
        return scaled


def train(run: rw.Run, steps: int = 10, batch_size: int = 50, times: str = "") -> None:
    """Train for some steps of one pass, and leave when each of them ended.

    steps: updates
    batch_size: rows of a step, over all devices together
    times: file for the seconds at which rank 0 ended each step, as JSON
    """
    model = run.prepare(nn.Sequential(*(Layer() for _ in range(LAYERS))))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 1e-6))
    loader = run.loader(torch.ones(steps * batch_size, 1), batch_size)
    ended = []
    for _ in run.epochs(1):
        for values in loader:
            run.step(model(values).mean(), optimizer)
            ended.append(time.perf_counter())
    if run.is_main and times:
        Path(times).write_text(json.dumps(ended))


if __name__ == "__main__":
    rw.launch(train)
