"""Cutting the inputs of a forward into chunks of rows, and putting the chunks' outputs together again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from rankwise.errors import MisuseError
from rankwise.structure import is_container, members, rebuilt

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def cut(inputs: Inputs, most: int) -> tuple[list[Inputs], list[int]]:
    """At most `most` chunks whose sizes differ by one row at most, and their sizes; none is empty unless all are.

    Rows are those of the first tensor found. Tensors with as many rows are cut, and so are lists of as many plain
    values; all else goes to every chunk.
    """
    rows = next(_row_counts(inputs), 1)
    count = max(1, min(most, rows))
    edges = [rows * part // count for part in range(count + 1)]
    spans = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    return [_piece(inputs, rows, span) for span in spans], [span.stop - span.start for span in spans]


def join(outputs: Sequence[Any], rows: Sequence[int], place: str = "output") -> Any:
    """Tensors one after the other, 0-dim floats as their mean weighed by rows, containers member by member.

    Plain values must be equal. Raises MisuseError that names what cannot be put together.
    """
    first = outputs[0]
    if len(outputs) == 1:
        return first
    if any(type(other) is not type(first) for other in outputs):
        raise _cannot(place, "of different types in different chunks")
    if isinstance(first, torch.Tensor):
        return _join_tensors(outputs, rows, place)
    if type(first) is list and not any(isinstance(member, torch.Tensor) or is_container(member) for member in first):
        return [member for output in outputs for member in output]
    if is_container(first):
        names = _names(first)
        if any(_names(other) != names for other in outputs):
            raise _cannot(place, "of different members in different chunks")
        remaining = iter(names)
        return rebuilt(lambda *members: join(members, rows, f"{place}{next(remaining)}"), *outputs)
    if not isinstance(first, (bool, int, float, str, type(None))) or any(other != first for other in outputs):
        raise _cannot(place, f"a {type(first).__name__} in each chunk")
    return first


def _join_tensors(tensors: Sequence[torch.Tensor], rows: Sequence[int], place: str) -> torch.Tensor:
    device = tensors[0].device
    if tensors[0].ndim > 0:
        return torch.cat([tensor.to(device) for tensor in tensors])
    if not tensors[0].is_floating_point():
        raise _cannot(place, "a 0-dim tensor of integers in each chunk")
    shares = torch.tensor([count / sum(rows) for count in rows], dtype=tensors[0].dtype, device=device)
    return (torch.stack([tensor.to(device) for tensor in tensors]) * shares).sum()


def _cannot(place: str, what: str) -> MisuseError:
    return MisuseError(f"Mode dp cannot put together `{place}`: it is {what}.",
                       "Tensors are put together by rows, 0-dim floats by their mean, other values if they are equal.",
                       "Leave it out of the module's output, or use mode ddp, where a module's output stays whole.")


def _row_counts(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor):
        if value.ndim > 0:
            yield len(value)
    elif is_container(value):
        for member in members(value):
            yield from _row_counts(member)


def _piece(value: Any, rows: int, span: slice) -> Any:
    if isinstance(value, torch.Tensor):
        return value[span] if value.ndim > 0 and len(value) == rows else value
    if type(value) is list and len(value) == rows and not any(map(_is_structured, value)):
        return value[span]
    if is_container(value):
        return rebuilt(lambda member: _piece(member, rows, span), value)
    return value


def _is_structured(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_container(value)


def _names(container: Any) -> list[str]:
    if isinstance(container, Mapping):
        return [f"[{key!r}]" for key in container]
    if isinstance(container, (tuple, list)):
        return [f".{name}" for name in getattr(container, "_fields", ())] or [f"[{i}]" for i in range(len(container))]
    return [f".{field.name}" for field in dataclasses.fields(container) if hasattr(container, field.name)]
