"""What the watchdog costs a step: a plain DistributedDataParallel loop with it and without, and its signs alone.

    python benchmarks/watchdog.py                 2 ranks; --rounds, --steps, --output

With it means the watching thread and its hooks in torch (torch keeps its record of collectives by itself). The hooks
stay for the life of a process, so that each block is a launch of its own under torchrun; the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from interleave import Comparison, as_json, comparisons, measure, table

_LIMIT_SECONDS = 300


def block(steps: int, way: str) -> None:
    """One rank of one block: a small net, so that what a step costs beside it is seen. Prints seconds a step."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    from rankwise.launcher.lastwords import watched_over
    from rankwise.settings import Settings
    from rankwise.world import World
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    watched: AbstractContextManager[None] = nullcontext()
    if way == "watched":
        watched = watched_over(Settings(), World(rank=rank, size=2, local_rank=rank, local_size=2),
                               Path(tempfile.gettempdir()))
    with watched:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        images, labels = torch.randn(32, 64), torch.randint(10, (32,))

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

        for _ in range(steps // 5):
            step()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - started) / steps
        if rank == 0:
            print(json.dumps({"seconds": seconds}), flush=True)
        dist.destroy_process_group()


def launched(steps: int, way: str) -> Callable[[], float]:
    """A block as a launch, which answers with its seconds a step."""
    def run() -> float:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
                   "--steps", str(steps), "--way", way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        line = next(line for line in done.stdout.splitlines() if line.startswith('{"seconds"'))
        return float(json.loads(line)["seconds"])
    return run


def signs(repeats: int = 1_000_000) -> dict[str, float]:
    """Nanoseconds of the main thread for one sign of progress, an empty loop taken off."""
    from rankwise.pulse import Pulse
    pulse = Pulse()
    calls: dict[str, Callable[[], None]] = {"nothing": lambda: None, "beat": pulse.beat,
                                            "at_step": lambda: pulse.at_step(1)}
    took = {}
    for name, call in calls.items():
        started = time.thread_time()
        for _ in range(repeats):
            call()
        took[name] = (time.thread_time() - started) / repeats * 1e9
    return {name: took[name] - took["nothing"] for name in ("beat", "at_step")}


def compare(rounds: int, steps: int) -> list[Comparison]:
    return comparisons(measure({"without": launched(steps, "plain"), "with the watchdog": launched(steps, "watched")},
                               control=launched(steps, "plain"), rounds=rounds, warm_up=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="launches of each way (default 10)")
    parser.add_argument("--steps", type=int, default=3000, help="steps of a launch that are timed (default 3000)")
    parser.add_argument("--output", default="", help="file for the figures as JSON")
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)   # what a rank of one block is told
    given = parser.parse_args()
    if given.way:
        block(given.steps, given.way)
        return
    found, nanoseconds = compare(given.rounds, given.steps), signs()
    print(table(f"A step of 2 ranks, {given.rounds} rounds of {given.steps} steps", found))
    print(", ".join(f"{name}: {value:.0f} ns" for name, value in nanoseconds.items()))
    if given.output:
        figures = {"load": os.getloadavg(), "steps": as_json(found), "signs_nanoseconds": nanoseconds}
        Path(given.output).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
