"""The modules that a script calls, and the names of their parameters and buffers: the same in every layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from rankwise.witness import seen


class Models:
    """Modules called from the script itself, not from within another module, in the order of their first call."""

    def __init__(self) -> None:
        self._roots: list[nn.Module] = []
        self._names: dict[torch.Tensor, str] = {}

    def add(self, module: nn.Module) -> bool:
        """Take a module that was called; False where it is known."""
        if any(module is root for root in self._roots):
            return False
        self._roots.append(module)
        self._name_all()
        return True

    def name_of_root(self, module: nn.Module) -> str:
        number = next(number for number, root in enumerate(self._roots) if root is module)
        return f"{type(module).__name__}{f' {number + 1}' if number else ''}"

    def _name_all(self) -> None:
        for root in self._roots:
            for name, parameter in self._of(root, root.named_parameters()):
                self._names.setdefault(parameter, name)

    def _of(self, root: nn.Module, named: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Plain names for the first module, names with the module's own before them for the others."""
        before = "" if root is self._roots[0] else f"{self.name_of_root(root)}."
        for name, tensor in named:
            yield before + name, tensor

    def parameters(self, optimizers: list[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
        """All parameters by name: of the modules, and those that only an optimizer holds."""
        self._name_all()
        for number, optimizer in enumerate(optimizers):
            for place, parameter in enumerate(_held(optimizer)):
                self._names.setdefault(parameter, f"optimizer {number + 1}, parameter {place + 1}")
        return {name: parameter for parameter, name in self._names.items()}

    def name_of(self, parameter: torch.Tensor) -> str:
        return self._names.get(parameter, "a parameter")

    def buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer for root in self._roots for name, buffer in self._of(root, root.named_buffers())}

    def layers(self) -> dict[str, int]:
        """How many layers of each class there are."""
        return dict(Counter(type(layer).__name__ for root in self._roots for layer in root.modules()))

    def modules(self) -> Iterator[nn.Module]:
        return (layer for root in self._roots for layer in root.modules())


def unwrapped(module: nn.Module) -> nn.Module:
    """The script's own module in what replicates or compiles it."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, (DistributedDataParallel, DataParallel)):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def hashes(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """A hash of each tensor."""
    return {name: seen.content(tensor) for name, tensor in tensors.items()}


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group, as plain values."""
    return [{name: _plain(value) for name, value in group.items() if name != "params" and _is_plain(value)}
            for group in optimizer.param_groups]


def _is_plain(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float, str)) or value is None or (
        isinstance(value, (tuple, list)) and all(map(_is_plain, value)))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return list(map(_plain, value)) if isinstance(value, (tuple, list)) else value


def _held(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
