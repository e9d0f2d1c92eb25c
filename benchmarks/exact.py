"""What exact mode costs: step time against plain ddp, bytes on the wire, and memory.

    python benchmarks/exact.py --devices 2                   step time and bytes: the tutorial's ConvNet, a transformer
    python benchmarks/exact.py --devices 2 --only-memory [--exact V]      peak memory of a rank

With W ranks, exact mode is measured with V = W virtual shards and with V = 4 W, beside plain ddp (with one rank: beside
mode single). The bytes are those that pass through the loopback device, so nothing else may use it meanwhile.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from interleave import as_json, comparisons, measure, table
from step import convnet
from torch import nn

import rankwise as rw
from rankwise.modes import open_mode
from rankwise.monitor import Monitor

_STEPS_A_BLOCK = 5
_WORDS, _LENGTH = 1000, 32


class Transformer(nn.Module):
    """Four layers of width 128 over a thousand words: 0.9 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.output = nn.Linear(128, _WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.output(self.encoder(self.words(text)))  # type: ignore[no-any-return]


def image_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def word_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    text, wanted = batch
    return F.cross_entropy(model(text).flatten(0, 1), wanted.flatten())


class Case(NamedTuple):
    """A model, the loss over a batch of its data, and the global batch."""

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]
    data: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    global_batch: int


CASES = {"ConvNet": Case(convnet, image_loss, lambda n: (torch.randn(n, 3, 32, 32), torch.randint(10, (n,))), 256),
         "transformer": Case(Transformer, word_loss, lambda n: (torch.randint(_WORDS, (n, _LENGTH)),
                                                                torch.randint(_WORDS, (n, _LENGTH))), 32)}


def opened(run: rw.Run, exact: int | None, number: int) -> rw.Run:
    """A run of its own over the same ranks, plain or exact."""
    settings = run.settings.having(exact=exact, log_every=1000)
    mode = open_mode("ddp" if run.world_size > 1 else "single", group=run._group, devices=1, amp="no", exact=exact)
    folder = run.folder / str(number)
    return rw.Run(settings, group=run._group, mode=mode, monitor=Monitor(run._group, folder, settings), folder=folder)


def block_of(run: rw.Run, case: Case) -> Callable[[], float]:
    """Trains some steps; the seconds of one."""
    torch.manual_seed(1)
    model = run.prepare(case.build())
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), 1e-3))
    batches = itertools.chain.from_iterable(
        run.loader(case.data(case.global_batch * _STEPS_A_BLOCK), case.global_batch) for _ in itertools.count())

    def block() -> float:
        run.barrier()
        started, done = time.perf_counter(), 0
        while done < _STEPS_A_BLOCK:
            done += run.step(case.loss(model, next(batches)), optimizer)
        return (time.perf_counter() - started) / _STEPS_A_BLOCK

    return block


def loopback_bytes() -> int:
    """Bytes sent over the loopback device so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0


def bytes_a_step(run: rw.Run, block: Callable[[], float]) -> float:
    """The least of several blocks, over all ranks."""
    found = []
    for _ in range(5):
        run.barrier()
        before = loopback_bytes()
        block()
        run.barrier()
        found.append((loopback_bytes() - before) / _STEPS_A_BLOCK)
    return min(found)


def compare(run: rw.Run, name: str, case: Case, rounds: int) -> dict[str, object]:
    """Take turns, and print what came out."""
    world = run.world_size
    layouts = {"plain": None, f"exact, V = {world}": world, f"exact, V = {4 * world}": 4 * world}
    runs = [opened(run, exact, number) for number, exact in enumerate((*layouts.values(), None))]
    blocks = [block_of(each, case) for each in runs]
    found = comparisons(measure(dict(zip(layouts, blocks, strict=False)), control=blocks[-1], rounds=rounds))
    sent = {layout: bytes_a_step(run, block) for layout, block in zip(layouts, blocks, strict=False)}
    parameters = sum(each.numel() for each in case.build().parameters())
    run.print(table(f"{name}, {parameters:,} parameters, global batch {case.global_batch}, {world} rank(s)", found))
    for layout, count in sent.items():
        run.print(f"{layout}: {count:,.0f} bytes a step over the loopback device, {count / parameters:.2f} a parameter")
    run.print("")
    for each in reversed(runs):
        each._mode.close()
        each._monitor.close()
    return {"comparisons": as_json(found), "bytes_a_step": sent, "parameters": parameters}


def memory(run: rw.Run) -> None:
    """Print how much the peak memory of a rank grows in some steps, in bytes a parameter, beyond the parameters."""
    model = run.prepare(nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4))))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 1e-3))
    parameters = sum(each.numel() for each in model.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for rows in run.loader(torch.randn(128, 2048), 32):
        run.step(model(rows).square().mean(), optimizer)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / parameters
    most = max(run._group.gather_objects(grown))
    run.print(f"exact {run.settings.exact}: {most:.1f} bytes a parameter more at the peak, {parameters:,} parameters")


def bench(run: rw.Run, rounds: int = 15, output: str = "", only_memory: bool = False) -> None:
    """Compare plain and exact steps; rank 0 prints the tables.

    Args:
        rounds: blocks of each layout
        output: file for the figures as JSON
        only_memory: peak memory of the layout that --exact names, or of the plain one
    """
    if only_memory:
        memory(run)
        return
    os.sched_setaffinity(0, {run.rank % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    found = {name: compare(run, name, case, rounds) for name, case in CASES.items()}
    if output and run.is_main:
        figures = {"world_size": run.world_size, "torch": torch.__version__, "load": os.getloadavg(), **found}
        Path(output).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    rw.launch(bench)
