"""Gradients as they come in a backward pass: which buckets of them are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


class Arrivals:
    """Watches the gradients of `parameters` and tells of each bucket that is complete, in order of the buckets.

    `buckets` has numbers of parameters; one with a number beyond them is never told of.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], buckets: Sequence[Sequence[int]],
                 tell: Callable[[Sequence[int]], None]) -> None:
        self._parameters, self._tell = parameters, tell
        self._buckets = [bucket for bucket in buckets if bucket[-1] < len(parameters)]
        self._missing: list[set[int]] = []
        self._watched: set[int] = set()
        self._hooks: list[Any] = []

    def begin(self) -> None:
        """A backward pass begins whose gradients are to be told of."""
        self._missing = [{index for index in bucket if self._parameters[index].requires_grad}
                         for bucket in self._buckets]
        for index in {each for missing in self._missing for each in missing} - self._watched:
            self._watched.add(index)
            parameter: Any = self._parameters[index]
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._hook(index)))

    def _hook(self, index: int) -> Callable[[Any], None]:
        def arrived(_: Any) -> None:
            for missing in self._missing:
                missing.discard(index)
            while self._missing and not self._missing[0]:
                del self._missing[0]
                self._tell(self._buckets[len(self._buckets) - len(self._missing) - 1])
        return arrived

    def end(self) -> None:
        """Tell of no more."""
        self._missing = []

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._watched.clear()
