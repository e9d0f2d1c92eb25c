"""The buffers of a module in exact mode: every virtual shard of a step starts from the same, and one set comes out.

Running statistics become the mean of what the shards make of them, weighed by rows; counters count a step once; any
other buffer becomes what the first shard makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

Place = tuple[nn.Module, str]


class ShardBuffers:
    """The buffers of one module on one rank."""

    def __init__(self, module: nn.Module) -> None:
        layers = list(dict.fromkeys(module.modules()))
        self._averaged = [(layer, name) for layer in layers if isinstance(layer, _NormBase)
                          for name in ("running_mean", "running_var") if layer._buffers.get(name) is not None]
        self._counters = [(layer, name) for layer in layers if isinstance(layer, _NormBase)
                          for name in ("num_batches_tracked",) if layer._buffers.get(name) is not None]
        known = {*self._averaged, *self._counters}
        self._others = [(layer, name) for layer in layers for name, buffer in layer._buffers.items()
                        if buffer is not None and (layer, name) not in known]
        self._start: dict[Place, torch.Tensor] = {}
        self._marks: dict[Place, tuple[int, int]] = {}
        self._first: dict[Place, torch.Tensor] = {}
        for place in (*self._averaged, *self._counters, *self._others):
            self._keep(place)

    def _keep(self, place: Place) -> None:
        """Its value now is what the next shard starts from."""
        buffer = _buffer(place)
        self._start[place] = buffer.detach().clone()
        self._marks[place] = _mark(buffer)

    def _changed(self, place: Place) -> bool:
        """Whether it was written to; torch does not note that of running statistics."""
        if isinstance(place[0], _NormBase):
            return True
        return _mark(_buffer(place)) != self._marks[place]

    def begin_step(self) -> None:
        """What the user, a checkpoint or an evaluation made of the buffers since the last step holds."""
        for place in self._start:
            if self._changed(place):
                self._keep(place)

    def restore(self) -> None:
        """Before another shard: put back what the step started from."""
        for place, start in self._start.items():
            if self._changed(place):
                _put(place, start)
                self._marks[place] = _mark(_buffer(place))

    @property
    def averaged(self) -> list[torch.Tensor]:
        """The running statistics, as they are."""
        return [_buffer(place) for place in self._averaged]

    def changes(self, share: float) -> list[torch.Tensor | None]:
        """What this shard, a `share` of the rows, adds to each running statistic; None where none is kept."""
        return [(_buffer(place) - self._start[place]).mul_(share) if place[0].training else None
                for place in self._averaged]

    def move(self, changes: Sequence[torch.Tensor | None]) -> None:
        """Add the sums of all shards' changes to what the running statistics were at the start."""
        for place, change in zip(self._averaged, changes, strict=True):
            if change is not None:
                _put(place, self._start[place] + change)

    def keep_others(self) -> None:
        """The shard just computed is the first: what it made of the other buffers is what they will be."""
        self._first = {place: _buffer(place).detach().clone() for place in self._others if self._changed(place)}

    def others_changed(self) -> list[bool]:
        """Of each other buffer, whether the first shard changed it; true on the rank that computed it."""
        return [place in self._first for place in self._others]

    def others(self) -> list[Callable[[], torch.Tensor]]:
        """What makes a copy of each other buffer: as the first shard left it, or as it is on this rank."""
        return [self._first.get(place, _buffer(place)).detach().clone for place in self._others]

    def take(self, values: Sequence[torch.Tensor | None]) -> None:
        """Take these other buffers; None is for those that the first shard did not change."""
        for place, value in zip(self._others, values, strict=True):
            if value is not None:
                _put(place, value)
        self._first.clear()


def _put(place: Place, value: torch.Tensor) -> None:
    """Into the buffer itself, which others may share; into its place where it has another shape by now."""
    layer, name = place
    buffer = _buffer(place)
    if buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        layer._buffers[name] = value.clone()


def _mark(buffer: torch.Tensor) -> tuple[int, int]:
    """Differs once a buffer was written to or replaced."""
    return id(buffer), buffer._version


def _buffer(place: Place) -> torch.Tensor:
    buffer = place[0]._buffers[place[1]]
    assert buffer is not None
    return buffer
