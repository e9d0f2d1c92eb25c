"""What a checkpoint costs the training: the stall of `run.save()`, and the steps while it is written.

    python benchmarks/checkpoint.py --megabytes 480      a state of 480 MB (default: 120), one rank
    python benchmarks/checkpoint.py --devices 2          the same with two ranks, of which rank 0 writes
    python benchmarks/checkpoint.py --output FILE        and the figures as JSON, beside those of other sizes

The stall is compared with a copy of as many bytes into memory that is in use already, and with the same checkpoint when
it is waited for. The steps are timed alone and while a checkpoint is being written. All take turns, and each comparison
has its reference twice (A/A). The state is that of an MLP and AdamW: weights and two moments.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleave import Comparison, as_json, comparisons, measure, table
from torch import nn

import rankwise as rw

WIDTH = 1000
BYTES_OF_A_LAYER = 3 * 4 * WIDTH * (WIDTH + 1)
BATCH = 16
STEPS_OF_A_BLOCK = 5


class Training:
    """A model whose weights and moments are about so many megabytes."""

    def __init__(self, run: rw.Run, megabytes: int) -> None:
        self.run = run
        layers = max(1, round(megabytes * 1e6 / BYTES_OF_A_LAYER))
        self.model = run.prepare(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)]))
        self.optimizer = run.prepare(torch.optim.AdamW(self.model.parameters(), 1e-6))
        self.inputs = torch.randn(BATCH, WIDTH, device=run.device)
        self.bytes = layers * BYTES_OF_A_LAYER
        self.source = torch.zeros(self.bytes // 4, device=run.device)
        self.target = torch.zeros(self.bytes // 4, pin_memory=self.source.is_cuda)

    def wait_for_disk(self) -> None:
        self.run._saving._checkpoints._writer.wait(600)

    def _settled(self) -> float:
        if self.source.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def seconds_of(self, action: Callable[[], Any]) -> float:
        started = self._settled()
        action()
        return self._settled() - started

    def memcpy(self) -> float:
        return self.seconds_of(lambda: self.target.copy_(self.source))

    def stall(self) -> float:
        """The save alone; what is written behind it is waited for outside of the time."""
        seconds = self.seconds_of(self.run.save)
        self.wait_for_disk()
        return seconds

    def save_and_wait(self) -> float:
        return self.seconds_of(lambda: self.run.save(wait=True))

    def step(self) -> None:
        self.run.step(self.model(self.inputs).square().mean(), self.optimizer)

    def steps_alone(self) -> float:
        return self.seconds_of(lambda: [self.step() for _ in range(STEPS_OF_A_BLOCK)]) / STEPS_OF_A_BLOCK

    def steps_while_writing(self) -> float:
        """Mean over the steps that begin while the checkpoint is being written; on rank 0 it is known."""
        self.run.save()
        steps, started = 0, self._settled()
        while self.run.agree(self.run._saving._checkpoints._writer.is_busy) or not steps:
            self.step()
            steps += 1
        seconds = self._settled() - started
        self.wait_for_disk()
        return seconds / steps

    def steps_and_agreement(self) -> float:
        """As `steps_while_writing`, with nothing to write: the reference for it."""
        def work() -> None:
            for _ in range(STEPS_OF_A_BLOCK):
                self.run.agree(False)
                self.step()
        return self.seconds_of(work) / STEPS_OF_A_BLOCK


def compare(training: Training, rounds: int) -> dict[str, list[Comparison]]:
    """The two comparisons for one size of state."""
    first = training.stall()
    stalls = measure({"memcpy": training.memcpy, "run.save()": training.stall,
                      "run.save(wait=True)": training.save_and_wait}, control=training.memcpy, rounds=rounds)
    steps = measure({"steps": training.steps_and_agreement, "steps while writing": training.steps_while_writing},
                    control=training.steps_and_agreement, rounds=rounds)
    found = {"stall": comparisons(stalls), "steps": comparisons(steps)}
    size = f"{training.bytes / 1e6:.0f} MB of state, {training.run.world_size} rank(s)"
    training.run.print(table(f"Stall, {size}; the first save, into fresh memory: {first * 1e3:.1f} ms", found["stall"]))
    training.run.print(table(f"Steps, {size}", found["steps"]))
    return found


def bench(run: rw.Run, megabytes: int = 120, rounds: int = 15, output: str = "") -> None:
    """Compare; rank 0 prints the tables.

    Args:
        megabytes: size of the state
        rounds: blocks of each way
        output: file for the figures as JSON; figures of another size in it are kept
    """
    torch.set_num_threads(1)
    training = Training(run, megabytes)
    for _ in run.epochs(1):
        for _ in range(3):
            training.step()
        found = compare(training, rounds)
    if output and run.is_main:
        path = Path(output)
        figures = json.loads(path.read_text()) if path.exists() else {}
        figures[f"{megabytes} MB"] = {"world_size": run.world_size, "torch": torch.__version__, "load": os.getloadavg(),
                                      **{name: as_json(each) for name, each in found.items()}}
        path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    rw.launch(bench)
