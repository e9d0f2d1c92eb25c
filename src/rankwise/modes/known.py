"""The parameters of prepared modules: an optimizer must hold no others, for nothing would reduce their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from rankwise.errors import MisuseError


class KnownParameters:
    """What was prepared so far. An optimizer is looked through once, and again when it holds more than then."""

    def __init__(self, truth: str) -> None:
        """`truth` says what becomes of the others."""
        self._truth = truth
        self._parameters: set[nn.Parameter] = set()
        self._checked: dict[torch.optim.Optimizer, int] = {}

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return parameter in self._parameters

    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters.update(parameters)

    def require(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raise MisuseError for an optimizer that holds a parameter of no prepared module."""
        for optimizer in optimizers:
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            if self._checked.get(optimizer) == count:
                continue
            if any(parameter not in self._parameters for group in optimizer.param_groups
                   for parameter in group["params"]):
                raise MisuseError(f"A {type(optimizer).__name__} holds parameters of no prepared module.", self._truth,
                                  "Call run.prepare(module) before the optimizer is built from module.parameters().")
            self._checked[optimizer] = count

    def clear(self) -> None:
        self._parameters.clear()
        self._checked.clear()
