"""The containers that batches and outputs are made of: tuples, named tuples, lists, mappings and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import torch


def is_container(value: Any) -> bool:
    """Whether `rebuilt` knows how to go into this value."""
    return isinstance(value, (tuple, list, Mapping)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type))


def members(container: Any) -> Iterable[Any]:
    """What a container holds, in order."""
    if isinstance(container, (tuple, list)):
        return container
    if isinstance(container, Mapping):
        return container.values()
    return [getattr(container, field.name) for field in dataclasses.fields(container) if hasattr(container, field.name)]


def rebuilt(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """A container like `first` whose members are `function` of its members and those of like containers."""
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(function, first, *others))
    if isinstance(first, (tuple, list)):
        return type(first)(map(function, first, *others))
    if isinstance(first, Mapping):
        return _with_members(first, {key: function(first[key], *(other[key] for other in others)) for key in first})
    result = copy.copy(first)   # not __init__, which may take other things than the fields
    for field in dataclasses.fields(first):
        if hasattr(first, field.name):
            values = (getattr(each, field.name) for each in (first, *others))
            object.__setattr__(result, field.name, function(*values))   # works on frozen ones too
    return result


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same structure with `function` applied to each tensor in it; other values stay."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if is_container(value):
        return rebuilt(lambda member: map_tensors(function, member), value)
    return value


def with_first(function: Callable[[Any], Any], value: Any) -> Any:
    """The structure with `function` applied to its first member, or to itself where it is no container."""
    if not is_container(value):
        return function(value)
    functions: Iterator[Callable[[Any], Any]] = chain([function], repeat(lambda member: member))
    return rebuilt(lambda member: next(functions)(member), value)


def _with_members(mapping: Mapping[Any, Any], members: dict[Any, Any]) -> Any:
    if type(mapping) is dict:
        return members
    result: Any = copy.copy(mapping)
    for key, value in members.items():
        result[key] = value
    return result
