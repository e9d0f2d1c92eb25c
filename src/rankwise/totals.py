"""Numbers over all ranks, exact where ranks have different numbers of rows."""

from __future__ import annotations

from typing import Any

import torch

from rankwise.errors import MisuseError
from rankwise.group import Group


def total(group: Group, value: Any) -> torch.Tensor:
    """Sum over the ranks, element by element: integers as int64, floats as float64 (float32 on MPS)."""
    return group.sum(_wide(group, value))


def mean(group: Group, value: Any, weight: Any = None, *, in_order: bool = False) -> torch.Tensor:
    """Mean over the rows of all ranks: of a tensor [rows, ...], or of means already taken, each with its weight.

    `in_order` is for rows that are to be added in an order that does not depend on the ranks: by size.
    Raises MisuseError for a single number without a weight.
    """
    wide = _wide(group, value)
    if weight is None and wide.ndim == 0:
        raise MisuseError("run.mean was given one number without a weight.",
                          "Ranks may have different numbers of rows, so a mean of means would be wrong.",
                          "Give the tensor of rows, or weight=number of rows behind the number.")
    wide = wide.to(_float(group))
    if in_order and weight is None:
        return gathered(group, wide, None).sort(0).values.mean(0)
    if weight is None:
        count = torch.tensor(float(len(wide)), dtype=wide.dtype, device=wide.device)
        own = wide.sum(0)
    else:
        count = torch.as_tensor(weight, dtype=wide.dtype, device=wide.device)
        own = torch.where(count > 0, wide * count, 0.0)   # a mean over no rows is NaN, and counts for nothing
    packed = group.sum(torch.cat([own.reshape(-1), count.reshape(1)]))
    return (packed[:-1] / packed[-1]).reshape(own.shape)


def gathered(group: Group, values: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """The rows [rows, ...] of all ranks, on every rank, sorted by `positions` (int64 [rows]); by rank without them."""
    parts = group.gather_objects((values.detach().cpu(), positions))
    rows = torch.cat([part for part, _ in parts])
    places = [place for _, place in parts if place is not None]
    if len(places) == len(parts):
        rows = rows[torch.cat(places).argsort()]
    return rows.to(group.device)


def _wide(group: Group, value: Any) -> torch.Tensor:
    tensor = torch.as_tensor(value, device=group.device).detach()
    if tensor.is_floating_point() and not hasattr(value, "dtype"):   # Python's floats would have become float32
        tensor = torch.as_tensor(value, dtype=_float(group), device=group.device)
    return tensor.to(_float(group) if tensor.is_floating_point() else torch.int64, copy=True)


def _float(group: Group) -> torch.dtype:
    return torch.float32 if group.device.type == "mps" else torch.float64
