"""What was prepared: the things that a checkpoint holds, each under a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from rankwise.errors import MisuseError


class Prepared:
    """Modules, optimizers, schedules and whatever else has a `state_dict`, in the order in which they came."""

    def __init__(self) -> None:
        self.things: dict[str, Any] = {}
        self._optimizers: set[torch.optim.Optimizer] = set()

    def add(self, thing: Any) -> bool:
        """Whether it was not there before."""
        if any(thing is known for known in self.things.values()):
            return False
        self.things[self._name_of(thing)] = thing
        if isinstance(thing, torch.optim.Optimizer):
            self._optimizers.add(thing)
        return True

    def _name_of(self, thing: Any) -> str:
        kind = ("model" if isinstance(thing, nn.Module) else "optimizer" if isinstance(thing, torch.optim.Optimizer)
                else "schedule" if isinstance(thing, torch.optim.lr_scheduler.LRScheduler) else "state")
        taken = sum(name == kind or name.startswith(kind + "_") for name in self.things)
        return kind if not taken else f"{kind}_{taken + 1}"

    def require(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raise MisuseError for an optimizer that was not prepared."""
        for optimizer in optimizers:
            if optimizer not in self._optimizers:
                raise MisuseError(f"run.step was given a {type(optimizer).__name__} that was not prepared.",
                                  "Its state would be missing in every checkpoint.",
                                  "Write optimizer = run.prepare(optimizer) before the loop.")

    def first_model(self) -> nn.Module:
        """The module that was prepared first; raises MisuseError where there is none."""
        for thing in self.things.values():
            if isinstance(thing, nn.Module):
                return thing
        raise MisuseError("run.export was called and no module was prepared.", "There are no weights to write.",
                          "Call run.prepare(model) first.")

    def clear(self) -> None:
        self.things.clear()
        self._optimizers.clear()
