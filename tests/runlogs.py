"""Logs of runs for tests, as a run writes them: metrics.jsonl line by line, with numbers that nobody computed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankwise.settings import Settings

BEGAN = 1_764_540_000.0   # 2025-11-30 22:00:00 UTC
PHASES = {"data": 0.001, "forward": 0.004, "backward": 0.008, "communication": 0.002, "optimizer": 0.001,
          "other": 0.0005}
Line = dict[str, Any]


def start(*, step: int = 0, epoch: int = 0, time: float = BEGAN, attempt: int = 0, ranks: int = 2,
          **settings: Any) -> Line:
    chosen = Settings(**{"mode": "ddp", "devices": ranks, **settings})
    return {"record": "start", "step": step, "epoch": epoch, "time": time, "attempt": attempt, "target": "fashion",
            "mode": chosen.mode, "devices": ranks, "world_size": ranks, "settings": asdict(chosen),
            "environment": {"rankwise": "0.1.0", "python": "3.12.3", "torch": "2.13.0+cpu", "platform": "Linux-6.1",
                            "device": "a processor", "cores": 2, "threads": 1, "backend": "gloo"}}


def numbers(step: int, epoch: int, time: float, **values: float | None) -> Line:
    return {"step": step, "epoch": epoch, "time": time, **values}


def split(step: int, epoch: int, time: float, *, steps: int = 10, factors: Sequence[float] = (1.0, 1.5)) -> Line:
    """Rank r takes `factors[r]` times as long as PHASES says, in every phase."""
    return {"record": "split", "step": step, "epoch": epoch, "time": time, "steps": steps, "samples": 32 * steps,
            "clock": "host",
            "communication_from": "the time between the last gradient and the end of backward",
            "ranks": [{**{name: seconds * factor for name, seconds in PHASES.items()},
                       "outside": 0.0, "device_busy": None, "flops_per_second": None,
                       "communication_total": 0.005 * factor, "wire_bytes": 400_000,
                       "memory_bytes": [300_000_000 + 1_000_000 * rank + 1000 * step]}
                      for rank, factor in enumerate(factors)]}


def checkpoint(step: int, epoch: int, time: float) -> Line:
    return {"record": "checkpoint", "step": step, "epoch": epoch, "time": time,
            "path": f"checkpoints/step-{step:06}"}


def end(step: int, epoch: int, time: float, how: str = "finished") -> Line:
    return {"record": "end", "step": step, "epoch": epoch, "time": time, "how": how, "lines": [
        "throughput 1,234 samples/s", "step 20.6 ms: forward 24 %", "memory 301 MB", "slowest rank 1",
        "advice: all fine; <b>nothing</b> to change"]}


def training(*, epochs: int = 3, steps: int = 49, step_seconds: float = 0.02, loss: float = 2.0, began: float = BEGAN,
             **first: Any) -> list[Line]:
    """A run of `epochs` epochs of `steps` steps, logged every 10 steps, saved with each epoch, to its end."""
    lines = [start(time=began, **first)]
    for step in range(1, epochs * steps + 1):
        epoch, now = (step - 1) // steps, began + 2 + step * step_seconds
        if step % 10 == 0:
            lines.append(numbers(step, epoch, now, loss=loss / (1 + step / 20), samples_per_second=1200 + step % 7))
            lines.append(split(step, epoch, now))
        if step % steps == 0:
            lines.append(numbers(step, epoch, now, accuracy=0.5 + 0.1 * epoch))
            lines.append(numbers(step, epoch, now, epoch_loss=loss / (1.5 + epoch)))
            lines.append(checkpoint(step, epoch, now))
    return [*lines, end(epochs * steps, epochs - 1, began + 3 + epochs * steps * step_seconds)]


def write(folder: Path, lines: Iterable[Line | str], cut: bool = False) -> Path:
    """The run's folder with these lines; a text is a line as it is. With `cut` half of the last one is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    if cut:
        texts[-1] = texts[-1][:len(texts[-1]) // 2]
    (folder / "metrics.jsonl").write_text("\n".join(texts) + ("" if cut else "\n"))
    (folder / "settings.json").write_text(json.dumps({"target": "fashion", "settings": {}}))
    return folder
