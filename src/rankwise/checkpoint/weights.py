"""A module's state as a file of plain tensors, and back: under plain names, each tensor once.

The file is safetensors; its metadata maps each further name of a tied tensor to the name that it is stored under.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from rankwise.errors import CheckpointError

_FORMAT = "format"   # metadata that other readers of safetensors look for
_NAMED = 5


def plain_state(module: nn.Module) -> dict[str, Any]:
    """The module's state dict under its plain names."""
    return {_plain(name): value for name, value in module.state_dict().items()}


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")   # torch.compile puts it before the names of what it compiled


def write_weights(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Write what safetensors can hold, an object that has several names once; returns the rest."""
    stored: dict[str, torch.Tensor] = {}
    first_names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for name, value in state.items():
        if not _fits_safetensors(value):
            rest[name] = value
        elif id(value) in first_names:
            aliases[name] = first_names[id(value)]
        else:
            stored[name] = value.contiguous()
            first_names[id(value)] = name
    save_file(stored, path, {**aliases, _FORMAT: "pt"})
    return rest


def _fits_safetensors(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and value.layout == torch.strided
            and not value.is_quantized and not value.is_complex())


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file on the CPU, under all their names."""
    with safe_open(path, framework="pt") as file:
        aliases = file.metadata() or {}
    tensors = load_file(path)
    return {**tensors, **{name: tensors[first] for name, first in aliases.items() if first in tensors}}


def matched(folder: Path, name: str, module: nn.Module, saved: dict[str, Any]) -> dict[str, Any]:
    """The saved state under the module's own names. Raises CheckpointError with the keys and shapes that differ."""
    own = module.state_dict()
    missing = [key for key in own if _plain(key) not in saved]
    unknown = saved.keys() - {_plain(key) for key in own}
    shapes = [f"{key} {_shape(saved[_plain(key)])}, here {_shape(value)}" for key, value in own.items()
              if key not in missing and _shape(saved[_plain(key)]) != _shape(value)]
    differences = {"missing": missing, "not in the model": sorted(unknown),
                   "of another shape": shapes}
    found = [f"{label}: {_some(keys)}" for label, keys in differences.items() if keys]
    if found:
        raise CheckpointError(f"{folder} was to be loaded into `{name}` ({type(module).__name__}).",
                              f"Its tensors differ; {'; '.join(found)}.",
                              "Build the model with the sizes of the run that saved it.")
    return {key: saved[_plain(key)] for key in own}


def _shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
