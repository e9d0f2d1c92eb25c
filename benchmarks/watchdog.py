"""What the watchdog costs a step: a plain DistributedDataParallel loop with it and without, and its signs alone.

    python benchmarks/watchdog.py                 2 ranks; --rounds, --steps, --output

The watching thread comes and goes in alternating blocks of one launch. Its signs, a hook after each optimizer's step,
stay for the life of a process; they are timed by themselves.
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
from pathlib import Path

from interleave import as_json, comparisons, measure, table

_LIMIT_SECONDS = 500
_SETTLE_SECONDS = 0.5   # for the watching thread to find the others


def rank(given: argparse.Namespace) -> None:
    """One rank of the launch: a small net, so that what a step costs beside it is seen. Rank 0 tells the figures."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    from rankwise.launcher.lastwords import watched_over
    from rankwise.settings import Settings
    from rankwise.world import World
    world = World(rank=int(os.environ["RANK"]), size=2, local_rank=int(os.environ["RANK"]), local_size=2)
    os.sched_setaffinity(0, {world.rank % (os.cpu_count() or 1)})
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images, labels = torch.randn(32, 64), torch.randint(10, (32,))

    def plain() -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(given.steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return (time.perf_counter() - started) / given.steps

    def watched() -> float:
        with watched_over(Settings(), world, Path(tempfile.gettempdir())):
            time.sleep(_SETTLE_SECONDS)
            return plain()

    found = comparisons(measure({"without": plain, "with the watchdog": watched}, control=plain, rounds=given.rounds))
    if world.is_main:
        print(table(f"A step of 2 ranks, {given.rounds} rounds of {given.steps} steps", found))
        nanoseconds = signs()
        print(", ".join(f"{name}: {value:.0f} ns" for name, value in nanoseconds.items()), flush=True)
        if given.output:
            figures = {"load": os.getloadavg(), "steps": as_json(found), "signs_nanoseconds": nanoseconds}
            Path(given.output).write_text(json.dumps(figures, indent=1) + "\n")
    os._exit(0)   # a thread of gloo may abort an interpreter that ends in order


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="blocks of each way (default 30)")
    parser.add_argument("--steps", type=int, default=500, help="steps of a block (default 500)")
    parser.add_argument("--output", default="", help="file for the figures as JSON")
    given = parser.parse_args()
    if "RANK" in os.environ:
        rank(given)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
               *sys.argv[1:]]
    sys.exit(subprocess.run(command, timeout=_LIMIT_SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1"},
                            check=False).returncode)


if __name__ == "__main__":
    main()
