"""Machines two by two: in rounds, so that each meets every other one, over a process group of the two alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from rankwise.doctor.ranks.line import Line
from rankwise.doctor.ranks.report import Pair
from rankwise.doctor.ranks.transport import words_of
from rankwise.errors import RankwiseError
from rankwise.group import Group
from rankwise.world import World

_GLOO_TIMES = 5              # gloo tries a connection so often, each time up to its limit
_LEAST_SECONDS = 3.0
_POLL_SECONDS = 0.05
_SMALL_TIMES, _LARGE_TIMES = 20, 4
_LARGE_ELEMENTS = 500_001    # 2 MB, and not a multiple of two


def rounds(machines: int) -> list[list[tuple[int, int]]]:
    """A tournament: in each round every machine (or, of an odd number, all but one) has one partner; each pair meets
    once. The circle method.
    """
    seats: list[int | None] = [*range(machines), *([None] if machines % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        pairs = [(first, second) for first, second in zip(seats[:len(seats) // 2], reversed(seats), strict=False)
                 if first is not None and second is not None]
        found.append([(min(pair), max(pair)) for pair in pairs])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def meet_all(machine: int, machines: int, device: torch.device, line: Line, connect: Callable[[str], dist.Store], *,
             limit_seconds: float) -> list[Pair]:
    """This machine with each other one, by one of its ranks; `connect` gives the store of a pair by its name.

    All machines begin a round together, so that none waits for one that is held up by the round before.
    """
    found = []
    for number, pairs in enumerate(rounds(machines)):
        line.post(f"round/{number}/{machine}", "here")
        _await(line, [f"round/{number}/{each}" for each in range(machines)], 2 * limit_seconds)
        for pair in pairs:
            if machine in pair:
                other = pair[1 - pair.index(machine)]
                line.at(f"pair with machine {other}")
                found.append(_met(other, pair.index(machine), device, connect(f"pair/{pair[0]}/{pair[1]}"),
                                  max(_LEAST_SECONDS, limit_seconds / _GLOO_TIMES)))
    return found


def _await(line: Line, names: Sequence[str], limit_seconds: float) -> None:
    """Wait until these are posted, or the limit has passed: what is missing then, the pairs will show."""
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline and any(line.read(name) is None for name in names):
        time.sleep(_POLL_SECONDS)


def _met(other: int, rank: int, device: torch.device, store: dist.Store, limit_seconds: float) -> Pair:
    group = None
    try:
        group = Group.open(World(rank=rank, size=2, local_rank=0, local_size=1), device, store=store,
                           timeout_seconds=limit_seconds)
        return _exchanged(other, group)
    except (RankwiseError, RuntimeError) as error:
        if not dist.is_initialized():
            _forget_attempt()
        return Pair(other=other, problem=words_of(error))
    finally:
        if group is not None:
            group.close()


def _forget_attempt() -> None:
    """torch numbers its groups, and the names in the store with them: after a failure this machine would be one ahead
    of the others. The end of a group sets the number back.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def _exchanged(other: int, group: Group) -> Pair:
    """Correctness, latency and rate of what the two exchange, and how far their clocks are apart."""
    device = group.device
    mine = torch.arange(_LARGE_ELEMENTS, dtype=torch.int32, device=device) % 1000 + group.rank
    expected = 2 * (torch.arange(_LARGE_ELEMENTS, dtype=torch.int32, device=device) % 1000) + 1
    is_wrong = not torch.equal(group.sum(mine.clone()), expected)
    small = statistics.median(_seconds(group, torch.zeros(1, device=device)) for _ in range(_SMALL_TIMES))
    large = min(_seconds(group, mine.clone()) for _ in range(_LARGE_TIMES))
    group.barrier()
    clocks = group.gather(torch.tensor([time.time()], dtype=torch.float64, device=device)).view(-1).tolist()
    return Pair(other=other, is_wrong=is_wrong, latency_seconds=small, bytes_per_second=mine.nbytes / large,
                clock_offset_seconds=clocks[1 - group.rank] - clocks[group.rank])


def _seconds(group: Group, tensor: torch.Tensor) -> float:
    group.barrier()
    began = time.perf_counter()
    group.sum(tensor)
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter() - began
