"""Machines two by two: in rounds, so that each meets every other one, over a process group of the two alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from rankwise.doctor.ranks.line import Line
from rankwise.doctor.ranks.report import Pair
from rankwise.errors import RankwiseError
from rankwise.group import Group
from rankwise.world import World

_LIMIT_SECONDS = 10.0        # for two machines to meet and exchange
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
    """This machine with each other one, by one of its ranks; `connect` gives the store of a pair by its name."""
    found = []
    for number, pairs in enumerate(rounds(machines)):
        pair = next((each for each in pairs if machine in each), None)
        if pair is not None:
            other = pair[0] if pair[1] == machine else pair[1]
            line.at(f"pair with machine {other}")
            line.post(f"round/{number}/{machine}", "here")
            found.append(_met(other, number, machine, pair, device, line, connect, limit_seconds))
    return found


def _met(other: int, number: int, machine: int, pair: tuple[int, int], device: torch.device, line: Line,
         connect: Callable[[str], dist.Store], limit_seconds: float) -> Pair:
    deadline = time.monotonic() + 2 * limit_seconds   # the other one may be held up by the pair before
    while line.read(f"round/{number}/{other}") is None:
        if time.monotonic() > deadline:
            return Pair(other=other, problem="it did not come")
        time.sleep(_POLL_SECONDS)
    limit = min(limit_seconds, _LIMIT_SECONDS)
    group = None
    try:
        group = Group.open(World(rank=pair.index(machine), size=2, local_rank=0, local_size=1), device,
                           store=connect(f"pair/{pair[0]}/{pair[1]}"), timeout_seconds=limit)
        return _exchanged(other, group)
    except RankwiseError as error:
        return Pair(other=other, problem=error.truth)
    except RuntimeError as error:
        return Pair(other=other, problem=(str(error).strip().splitlines() or [type(error).__name__])[0][:200])
    finally:
        if group is not None:
            group.close()


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
