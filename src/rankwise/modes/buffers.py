"""Buffers that are equal on all ranks after each update, without a broadcast in each forward.

Running statistics of a normalisation over slices become their mean over the ranks, weighed by rows: what one process
would have of the same batch, but for the spread between the slices' means. Any other buffer that changes becomes rank
0's. Which ones change is asked after updates 1, 2, 4, 8 and so on; constants cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from rankwise.group import Group
from rankwise.modes.batchnorm import SynchronisedBatchNorm

Mark = tuple[int, int]


class Buffers:
    """The buffers of one module, on the ranks of `group`."""

    def __init__(self, module: nn.Module, group: Group) -> None:
        self._group = group
        norms = [layer for layer in module.modules() if isinstance(layer, _NormBase)]
        self._averaged = [layer for layer in norms
                          if layer.running_mean is not None and not isinstance(layer, SynchronisedBatchNorm)]
        statistics = {id(buffer) for layer in norms for buffer in layer.buffers(recurse=False)}
        self._others = [(layer, name) for layer in module.modules() for name, buffer in layer._buffers.items()
                        if buffer is not None and id(buffer) not in statistics]
        self._marks = [_mark(buffer) for buffer in self._other_buffers()]
        self._changing: list[int] = []
        self._updates = 0

    def equalise(self, rows: int) -> None:
        """Make the buffers equal after an update; `rows` is the size of this rank's slice."""
        self._updates += 1
        if self._others and self._updates & (self._updates - 1) == 0:
            self._find_changing()
        statistics = [buffer for layer in self._averaged if layer.training
                      for buffer in (layer.running_mean, layer.running_var) if buffer is not None]
        with torch.no_grad():
            self._average(statistics, rows)
            self._spread()

    def _average(self, buffers: Sequence[torch.Tensor], rows: int) -> None:
        if not buffers:
            return
        wide = torch.float32 if self._group.device.type == "mps" else torch.float64
        flat = torch.cat([buffer.reshape(-1).to(wide) for buffer in buffers] + [buffers[0].new_ones(1, dtype=wide)])
        flat = self._group.sum(flat * rows)
        _scatter(flat[:-1] / flat[-1], buffers)

    def _spread(self) -> None:
        """Rank 0's values, one broadcast for each dtype."""
        buffers = self._other_buffers()
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for index in self._changing:
            by_dtype.setdefault(buffers[index].dtype, []).append(buffers[index])
        for alike in by_dtype.values():
            _scatter(self._group.broadcast(torch.cat([buffer.reshape(-1) for buffer in alike])), alike)

    def _find_changing(self) -> None:
        """Ask the ranks which buffers changed since the module was prepared."""
        changed = [_mark(buffer) != mark for buffer, mark in zip(self._other_buffers(), self._marks, strict=True)]
        anywhere = self._group.max(torch.tensor(changed, dtype=torch.int32, device=self._group.device))
        self._changing = anywhere.nonzero().flatten().tolist()

    def _other_buffers(self) -> list[torch.Tensor]:
        return [layer._buffers[name] for layer, name in self._others]  # type: ignore[misc]


def _mark(buffer: torch.Tensor) -> Mark:
    """Differs once a buffer was written to or replaced."""
    return id(buffer), buffer._version


def _scatter(flat: torch.Tensor, buffers: Sequence[torch.Tensor]) -> None:
    for buffer, part in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
