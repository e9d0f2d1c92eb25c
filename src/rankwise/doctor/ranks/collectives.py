"""Real collectives on every dtype that a backend takes, against results that are known beforehand, to the last bit.

Whole numbers that are exact in a dtype have one sum, in whatever order they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rankwise.doctor.ranks.report import Tally, Wrong

_EXACT = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "int64": 1 << 40,
          "int32": 1 << 30, "int16": 1 << 14, "int8": 127, "uint8": 255, "bool": 1, "complex128": 1 << 53,
          "complex64": 1 << 24, "float8_e4m3fn": 16, "float8_e5m2": 8}   # whole numbers up to here are exact
_ELEMENTS = (1, 7, 1023)      # none of them a multiple of two ranks
_LARGEST = 100
_PRODUCT_RANKS = 5            # so many of them bring a factor, so that no product leaves any dtype
_LOST = ("gloo/", "Connection", "Timed out", "timed out", "Broken pipe")   # words of a lost rank, not of a refusal


@dataclass(frozen=True, kw_only=True)
class Peers:
    """This rank among all, and the device of its tensors."""

    rank: int
    size: int
    device: torch.device


def all_reduce(peers: Peers) -> tuple[Tally, list[Wrong]]:
    """Sum, min, max, product and mean; each is a collective of its own among what is wrong."""
    def run(operation: str, name: str, elements: int) -> bool:
        tensor = _part(peers.rank, peers, name, elements, operation)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, operation.upper()))
        return _is(tensor, _reduced(peers, name, elements, operation), name, operation, peers.size)

    return _tried([(f"all-reduce ({operation})", _for(run, operation))
                   for operation in ("sum", "min", "max", "product", "avg")])


def broadcast(peers: Peers) -> tuple[Tally, list[Wrong]]:
    """From each rank in turn; what is wrong has that rank as its source."""
    def run(source: int, name: str, elements: int) -> bool:
        tensor = _part(peers.rank, peers, name, elements, "sum")
        dist.broadcast(tensor, source)
        return _is(tensor, _part(source, peers, name, elements, "sum"), name, "sum", peers.size)

    return _tried([("broadcast", _for(run, source)) for source in range(peers.size)],
                  sources=list(range(peers.size)))


def all_gather(peers: Peers) -> tuple[Tally, list[Wrong]]:
    """Into one tensor, into a list, and into a list of tensors that differ in length."""
    def into_one(source: int, name: str, elements: int) -> bool:
        everyone = torch.zeros(peers.size * elements, dtype=getattr(torch, name), device=peers.device)
        # torch 2.13 has a new name for it, and warns of the old one.
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(everyone, _part(peers.rank, peers, name, elements, "sum"))
        return _is(everyone.view(peers.size, elements)[source], _part(source, peers, name, elements, "sum"), name,
                   "sum", peers.size)

    def into_list(source: int, name: str, elements: int, longer: int = 0) -> bool:
        lists = [torch.zeros(elements + longer * rank, dtype=getattr(torch, name), device=peers.device)
                 for rank in range(peers.size)]
        dist.all_gather(lists, _part(peers.rank, peers, name, elements + longer * peers.rank, "sum"))
        return _is(lists[source], _part(source, peers, name, elements + longer * source, "sum"), name, "sum",
                   peers.size)

    def ragged(source: int, name: str, elements: int) -> bool:
        return into_list(source, name, elements, longer=1)

    kinds = (("all-gather", into_one), ("all-gather (list)", into_list), ("all-gather (ragged list)", ragged))
    return _tried([(kind, _for(run, source)) for kind, run in kinds for source in range(peers.size)],
                  sources=list(range(peers.size)) * len(kinds))


def reduce_scatter(peers: Peers) -> tuple[Tally, list[Wrong]]:
    """The sum of a tensor of all ranks' parts, of which each rank gets its own."""
    def run(_: int, name: str, elements: int) -> bool:
        mine = torch.zeros(elements, dtype=getattr(torch, name), device=peers.device)
        scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        scatter(mine, _part(peers.rank, peers, name, peers.size * elements, "sum"))
        whole = _reduced(peers, name, peers.size * elements, "sum")
        return _is(mine, whole.view(peers.size, elements)[peers.rank], name, "sum", peers.size)

    return _tried([("reduce-scatter", _for(run, 0))])


COLLECTIVES = {"all-reduce": all_reduce, "broadcast": broadcast, "all-gather": all_gather,
               "reduce-scatter": reduce_scatter}


def _for(run: Any, argument: Any) -> Callable[[str, int], bool]:
    return lambda name, elements: run(argument, name, elements)


def _tried(runs: list[tuple[str, Callable[[str, int], bool]]], sources: Sequence[int | None] = ()
           ) -> tuple[Tally, list[Wrong]]:
    """Every run on every dtype and size; what the backend refuses with an error is not claimed, and not wrong."""
    claimed, refused, wrongs, count = set(), set(), [], 0
    of = sources or [None] * len(runs)
    for (kind, run), source in zip(runs, of, strict=True):
        for name in _EXACT:
            label = f"{kind} {name}"
            for elements in _ELEMENTS if hasattr(torch, name) else ():
                try:
                    is_right = run(name, elements)
                except (RuntimeError, ValueError, TypeError) as error:
                    if isinstance(error, dist.DistError) or any(sign in str(error) for sign in _LOST):
                        raise
                    refused.add(label)
                    break
                count += 1
                claimed.add(label)
                if not is_right:
                    wrongs.append(Wrong(collective=kind, dtype=name, elements=elements, source=source))
    return Tally(claimed=tuple(sorted(claimed)), refused=tuple(sorted(refused)), runs=count), wrongs


def _part(rank: int, peers: Peers, name: str, elements: int, operation: str) -> torch.Tensor:
    """What a rank brings: whole numbers, different on each rank, whose reduction is exact in this dtype."""
    index = torch.arange(elements)
    if operation == "product":
        values = 1 + (index + rank) % 2 if rank < _PRODUCT_RANKS else torch.ones_like(index)
    else:
        most = _EXACT[name]
        values = (index * 7 + rank * 3 + 1) % (max(1, min(most // peers.size, _LARGEST)) + 1)
        if peers.size > most:   # so few of the ranks bring anything to an element
            values = values * ((index + rank) % peers.size < most)
    return values.to(getattr(torch, name)).to(peers.device)


def _reduced(peers: Peers, name: str, elements: int, operation: str) -> torch.Tensor:
    everyone = torch.stack([_plain(_part(rank, peers, name, elements, operation), name) for rank in range(peers.size)])
    if name == "bool":   # a sum of truths is `any`, a product `all`
        operation = {"sum": "max", "product": "min"}.get(operation, operation)
    if operation == "avg":
        return everyone.sum(0) / peers.size
    reduced: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda all_: all_.sum(0), "product": lambda all_: all_.prod(0),
        "min": lambda all_: all_.amin(0), "max": lambda all_: all_.amax(0)}
    return reduced[operation](everyone)


def _plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """On the host, in a dtype in which everything can be compared."""
    if name == "bool":   # bytes that are not zero, whatever they are
        return (tensor.view(torch.uint8) != 0).to("cpu", torch.int64)
    wide = torch.complex128 if name.startswith("complex") else torch.float64 if "float" in name else torch.int64
    return tensor.cpu().to(wide)


def _is(found: torch.Tensor, expected: torch.Tensor, name: str, operation: str, ranks: int) -> bool:
    """Equal; a mean of floats may be rounded once a rank."""
    found = _plain(found, name)
    expected = expected if expected.dtype == found.dtype else _plain(expected, name)
    if operation == "avg":
        eps = torch.finfo(getattr(torch, name)).eps
        return bool(((found - expected).abs() <= eps * (ranks + 1) * expected.abs()).all())
    return bool(torch.equal(found, expected))
