"""A micro-batch without samples, in the shape that a collate function would give it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rankwise.structure import is_container, rebuilt

Collate = Callable[[list[Any]], Any]


class _CannotBeCutError(Exception):
    """A batch holds an object of which we do not know what it would be without samples."""


def collate_nothing(collate: Collate, read_sample: Callable[[], Any]) -> Any:
    """What `collate` would give for no samples; `read_sample` reads one that stands in.

    Where one and two samples differ in size, none has as much less again: a batch dimension becomes 0, wherever it is,
    and a list of n + 1 offsets keeps its one. Where the batch holds an object of unknown kind, one sample stays in it,
    which the step weighs with 0.
    """
    one = collate([read_sample()])
    try:
        return _less(one, collate([read_sample(), read_sample()]))
    except _CannotBeCutError:
        return one


def _less(one: Any, two: Any) -> Any:
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return one[tuple(slice(max(0, 2 * a - b)) for a, b in zip(one.shape, two.shape, strict=True))]
    if isinstance(one, (tuple, list)) and len(one) != len(two):
        return one[: max(0, 2 * len(one) - len(two))]
    if is_container(one) and (not hasattr(one, "to") or isinstance(one, Mapping) or dataclasses.is_dataclass(one)):
        return rebuilt(_less, one, two)
    if one is None or isinstance(one, (str, bytes, bool, int, float, complex)):
        return one
    raise _CannotBeCutError
