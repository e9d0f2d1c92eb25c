"""A loss without weight is often not a number, and must not make the weights so.

A slice may have no rows, or rows that count nothing (padding, ignored labels), and a mean over them is 0 / 0. Its
gradient is seeded with zero, but zero times what is not a number is not zero; so it is replaced where it enters a
prepared module. Outputs are watched for that in micro-batches without rows, and once a loss came with a weight of its
own; the first of these comes before anything was watched, and its gradients are replaced where they leave, at the
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from rankwise.ledger import FORWARD, OTHER, Ledger
from rankwise.microbatch import MicroBatch
from rankwise.modes.inplace import InPlace
from rankwise.structure import map_tensors


class Guard:
    """The context of a backward pass: within it, gradients are exact zeros where the loss's amount is 0."""

    def __init__(self, modules: Sequence[nn.Module], ledger: Ledger) -> None:
        self._modules, self.ledger = modules, ledger
        self._weighted = False
        self.watches = False
        self._amount: torch.Tensor | None = None
        self._hooks: list[Any] = []

    def expect(self, micro_batch: MicroBatch) -> None:
        """Watch outputs in this micro-batch where its loss may have no weight."""
        self.watches = self._weighted or micro_batch.rows == 0

    def against(self, amount: torch.Tensor | None) -> Guard:
        """`with guard.against(amount)`: a 0-dim tensor, or None where the loss is known to have weight."""
        self._amount = amount
        return self

    def __enter__(self) -> None:
        if self._amount is not None and not self.watches:
            trainable = [parameter for module in self._modules for parameter in module.parameters()
                         if parameter.requires_grad]
            self._hooks = [each.register_hook(self._replace) for each in trainable]  # type: ignore[no-untyped-call]
            self._weighted = self.watches = True

    def __exit__(self, *error: object) -> None:
        self._amount = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def watch(self, output: torch.Tensor) -> torch.Tensor:
        """Look at the gradient of this output of a module, when it comes."""
        if output.requires_grad and not output.is_leaf:
            output.register_hook(self._replace)  # type: ignore[no-untyped-call]
        return output

    def _replace(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return None if self._amount is None else torch.where(self._amount > 0, gradient, 0.0)


class Guarded(InPlace):
    """A module whose outputs are watched when there is need to. Code that torch compiles is left as it is."""

    _guard: Guard

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ledger = self._guard.ledger
        if ledger.phase == OTHER and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            ledger.enter(FORWARD)   # of a second loss, after the update by the first
        outputs = super().__call__(*args, **kwargs)
        if self._guard.watches and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return map_tensors(self._guard.watch, outputs)
        return outputs
