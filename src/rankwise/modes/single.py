"""Mode single: one process, one device. What it does with a module, the other modes do too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import nn

from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.modes.guard import Guard, Guarded
from rankwise.modes.inplace import put_in_front
from rankwise.modes.options import PrepareOptions
from rankwise.modes.precision import autocast_forward

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Single:
    """Modules are moved to the device, in place, and run under autocast where mixed precision was asked for."""

    name = "single"

    def __init__(self, *, group: Group, devices: int = 1, amp: str = "no") -> None:
        self.replicas, self.averaged_over = 1, group.size
        self._group, self._amp = group, amp
        self._prepared: list[nn.Module] = []
        self._guard = Guard(self._prepared, group.ledger)

    def prepare(self, module: ModuleT, **options: Any) -> ModuleT:
        """Place `module`; the same object comes back, and preparing it again changes nothing."""
        chosen = PrepareOptions.of(options)
        if any(module is known for known in self._prepared):
            return module
        self._prepared.append(module)
        module.to(self._group.device)
        inner = getattr(module, "_orig_mod", module)   # what torch.compile wraps
        self._replicate(inner, chosen)
        if self._amp != "no":
            autocast_forward(inner, self._group.device, self._amp)
        put_in_front(Guarded, module, _guard=self._guard)
        return module

    def _replicate(self, module: nn.Module, options: PrepareOptions) -> None:
        """One device holds the one replica."""

    def notices(self, module: nn.Module, **options: Any) -> list[str]:
        return []

    def expect(self, micro_batch: MicroBatch) -> None:
        self._guard.expect(micro_batch)

    def reducing(self, loss: torch.Tensor, micro_batch: MicroBatch, amount: torch.Tensor | None = None, *,
                 update_follows: bool = False) -> AbstractContextManager[None]:
        return self._guard.against(amount)

    def complete(self, *, is_last: bool) -> list[str]:
        return []

    def after_update(self) -> None:
        pass

    def require_known_parameters(self, optimizers: list[torch.optim.Optimizer]) -> None:
        pass

    def layout(self) -> dict[str, Any]:
        return {}

    def resumed(self, layout: Mapping[str, Any]) -> list[str]:
        return []

    def close(self) -> None:
        self._prepared.clear()
