"""What the books of a step cost: the same training with and without them, in alternating blocks.

    python benchmarks/monitor.py --devices 2      2 ranks: the tutorial's ConvNet and a small MLP
    python benchmarks/monitor.py --devices 1      1 rank, whose time is its thread's CPU time

Without them the ledger changes no phase, hooks no backward and closes no book; the log of losses stays in both.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from interleave import as_json, comparisons, measure, table
from step import CASES, Block, by_rankwise

import rankwise as rw


@contextlib.contextmanager
def no_books(run: rw.Run) -> Iterator[None]:
    """Within this block nothing is accounted for."""
    ledger, monitor = run._ledger, run._monitor
    accounts, monitor._accounts = monitor._accounts, None
    idle: dict[str, Callable[..., object]] = {
        "enter": lambda phase: phase, "end_step": lambda: None, "sent": lambda count: None,
        "communicating": contextlib.nullcontext, "tail_of_backward": contextlib.nullcontext}
    vars(ledger).update(idle)
    ledger._steps_until_sample = -1
    try:
        yield
    finally:
        for name in idle:
            del vars(ledger)[name]
        monitor._accounts = accounts


def without(run: rw.Run, block: Block) -> Block:
    def quiet() -> float:
        with no_books(run):
            return block()
    return quiet


def bench(run: rw.Run, rounds: int = 20, output: str = "") -> None:
    """Compare; rank 0 prints the tables.

    Args:
        rounds: blocks of each kind on the ConvNet; on the MLP, whose blocks are short, five times as many
        output: file for the figures as JSON
    """
    os.sched_setaffinity(0, {run.rank % (os.cpu_count() or 1)})
    found = {}
    for _ in run.epochs(1):
        for name, case in CASES.items():
            _, block, _ = by_rankwise(run, case, case.data())
            bare = without(run, block)
            compared = comparisons(measure({"without books": bare, "with books": block}, control=bare,
                                           rounds=rounds * case.blocks_a_round))
            run.print(table(f"{name}, global batch {case.global_batch}, {run.world_size} rank(s)", compared))
            found[name] = as_json(compared)
    if output and run.is_main:
        figures = {"world_size": run.world_size, "torch": torch.__version__, "load": os.getloadavg(), **found}
        Path(output).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    rw.launch(bench)
