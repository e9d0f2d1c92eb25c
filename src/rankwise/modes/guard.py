"""A loss without weight is often not a number, and must not make the weights so.

A slice may have no rows, or rows that count nothing (padding, ignored labels), and a mean over them is 0 / 0. Its
gradient is seeded with zero, but zero times what is not a number is not zero; so where it enters a prepared module it
is replaced.
"""

from __future__ import annotations

from typing import Any

import torch

from rankwise.modes.inplace import InPlace
from rankwise.structure import map_tensors


class Guard:
    """The context of one backward pass: within it, gradients are exact zeros where the loss's amount is 0."""

    def __init__(self) -> None:
        self._amount: torch.Tensor | None = None

    def against(self, amount: torch.Tensor | None) -> Guard:
        """`with guard.against(amount)`: a 0-dim tensor, or None where the loss is known to have weight."""
        self._amount = amount
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._amount = None

    def watch(self, output: torch.Tensor) -> torch.Tensor:
        """Look at the gradient of this output of a module, when it comes."""
        if output.requires_grad and not output.is_leaf:
            output.register_hook(self._replace)  # type: ignore[no-untyped-call]
        return output

    def _replace(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return None if self._amount is None else torch.where(self._amount > 0, gradient, 0.0)


class Guarded(InPlace):
    """A module whose outputs are watched. Code that torch compiles is left as it is."""

    _guard: Guard

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().__call__(*args, **kwargs)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return outputs
        return map_tensors(self._guard.watch, outputs)
