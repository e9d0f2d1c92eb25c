"""The mean loss over all ranks, added up where the losses are and read one interval after it was asked for."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from rankwise.group import Group

_SLOTS = 64


class LossMeter(Protocol):
    """Adds up the weighed losses of one rank and reduces them over the ranks without making the host wait."""

    def add(self, loss: torch.Tensor, amount: torch.Tensor, *, is_sum: bool = False, shard: int = 0) -> None:
        """Note a 0-dim loss that is the mean (or the sum) over an amount of rows or weight, 0-dim as well.

        The loss's memory may be used again in the next step (CUDA graphs do that); the amount is kept.
        """

    def reduce(self) -> Reading:
        """Begin the sum over all ranks of what was added since the last call; on every rank at the same step."""
        ...


def loss_meter(group: Group, shards: int | None = None) -> LossMeter:
    """The meter for the device of `group`; in exact mode for so many virtual shards."""
    if group.device.type == "cpu" or shards is not None:
        return HostMeter(group, shards or 1)
    return DeviceMeter(group)


class HostMeter:
    """Losses are read as numbers at once: on a CPU nothing runs behind the host.

    Each shard has a place of its own, and the places are added up without rounding in between: the number of ranks
    does not change a bit of the mean.
    """

    def __init__(self, group: Group, shards: int = 1) -> None:
        self._group, self._shards = group, shards
        self._begin()

    def _begin(self) -> None:
        self._weighed, self._amounts = [0.0] * self._shards, [0.0] * self._shards

    def add(self, loss: torch.Tensor, amount: torch.Tensor, *, is_sum: bool = False, shard: int = 0) -> None:
        rows = amount.item()
        if rows > 0:   # the mean over no rows is NaN, and counts nothing
            self._weighed[shard] += loss.item() if is_sum else loss.item() * rows
            self._amounts[shard] += rows

    def reduce(self) -> Reading:
        totals = torch.tensor([self._weighed, self._amounts], dtype=torch.float64, device=self._group.device)
        self._begin()
        return Reading(self._group, totals)


class DeviceMeter:
    """Losses stay on the device; they are added up some at a time, for each operation costs a launch."""

    def __init__(self, group: Group) -> None:
        self._group = group
        dtype = torch.float32 if group.device.type == "mps" else torch.float64
        self._losses = torch.zeros(_SLOTS, dtype=dtype, device=group.device)
        self._slots = self._losses.unbind()
        self._amounts: list[torch.Tensor] = []
        self._folded = torch.zeros(2, dtype=dtype, device=group.device)

    def add(self, loss: torch.Tensor, amount: torch.Tensor, *, is_sum: bool = False, shard: int = 0) -> None:
        if len(self._amounts) == _SLOTS:
            self._folded = self._fold()
        slot = self._slots[len(self._amounts)]
        slot.copy_(loss.detach())
        if is_sum:
            slot.div_(amount)
        self._amounts.append(amount)

    def reduce(self) -> Reading:
        totals, self._folded = self._fold(), torch.zeros_like(self._folded)
        return Reading(self._group, totals)

    def _fold(self) -> torch.Tensor:
        """Weighed loss and amount so far, [2]; the slots are free again."""
        if not self._amounts:
            return self._folded
        amounts = torch.stack(self._amounts).to(self._losses.dtype)
        losses = self._losses[: len(amounts)]
        weighed = torch.where(amounts > 0, losses * amounts, 0.0)   # the mean over no rows is NaN, and counts nothing
        self._amounts.clear()
        return torch.stack((weighed, amounts)).sum(1).add_(self._folded)


class Reading:
    """Weighed loss and amount, each one number or one for each shard, summed over all ranks, on their way to the host.
    """

    def __init__(self, group: Group, totals: torch.Tensor) -> None:
        self._group = group
        self._pending = group.sum_later(totals)
        self._copy = HostCopy(self._pending.wait()) if totals.device.type == "cuda" else None

    def numbers(self) -> tuple[float, float]:
        """Both, as numbers; waits where they are not here yet."""
        with self._group.explained("the reduction of the loss"):
            loss, amount = self._copy.read() if self._copy else self._pending.wait().tolist()
        return (math.fsum(loss), math.fsum(amount)) if isinstance(loss, list) else (loss, amount)


class HostCopy:
    """The numbers of a device tensor, copied to the host behind the work that is under way."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._numbers = tensor
        if tensor.device.type == "cuda":
            self._numbers = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._numbers.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> Any:
        if self._event is not None:
            self._event.synchronize()
        return self._numbers.tolist()
