"""Weights that a training starts from: a plain state dict that anybody wrote, or a checkpoint of ours."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankwise.checkpoint import folder as folders
from rankwise.checkpoint.state import STATE
from rankwise.checkpoint.weights import matched, plain_state, read_weights
from rankwise.errors import CheckpointError, UsageError

_NESTED_UNDER = ("state_dict", "model", "model_state_dict")
_MODEL = "model"   # the name of the first module that was prepared


class _NoStateDict(Exception):   # noqa: N818 (it becomes a UsageError)
    """What was read is of another kind."""


def load_initial(source: Path, module: nn.Module) -> None:
    """Load weights into `module`: from a .safetensors file, from a file of torch.save, from a checkpoint or a run.

    A state dict may lie under `state_dict`, `model` or `model_state_dict`, and its names may have the prefixes that
    DistributedDataParallel (`module.`) and torch.compile (`_orig_mod.`) put before them. Raises UsageError where
    `source` is not there, cannot be read safely, or differs from the module, with the keys and shapes that do.
    """
    if not source.exists():
        raise UsageError(f"--init is {source}.", "There is no such file or folder.",
                         "Give a .safetensors file, a file of torch.save, or a checkpoint's folder.")
    try:
        saved = _read(source)
    except CheckpointError as error:
        raise UsageError(f"--init is {source}.", error.truth, "Give another run, or one of its checkpoints.") from error
    except Exception as error:   # what is no file of weights makes pickle raise whatever it likes
        raise UsageError(f"--init is {source}.", _unreadable(error),
                         "A state dict of tensors and plain values is read without risk; make one with "
                         "torch.save(model.state_dict(), path).") from error
    own = {_bare(name): name for name in plain_state(module)}
    renamed = {own.get(_bare(name), name): value for name, value in saved.items()}
    try:
        module.load_state_dict(matched(source, _MODEL, module, renamed))
    except CheckpointError as error:
        raise UsageError(f"--init is {source}, for a {type(module).__name__}.", error.truth,
                         "Give a state dict of this model, as it is or under state_dict, model or "
                         "model_state_dict.") from error
    except (ValueError, RuntimeError, KeyError) as error:
        raise UsageError(f"--init is {source}, for a {type(module).__name__}.",
                         f"It does not fit: {_first_line(error)}", "Give --init weights of this model.") from error


def _read(source: Path) -> Mapping[str, Any]:
    if source.is_dir():
        checkpoint, _ = folders.find(source)
        rest = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
        return {**read_weights(checkpoint / f"{_MODEL}.safetensors"), **rest.get(_MODEL, {})}
    if source.suffix == ".safetensors":
        return read_weights(source)
    content = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        raise _NoStateDict(f"it holds a {type(content).__name__}, not a state dict.")
    return next((content[name] for name in _NESTED_UNDER if isinstance(content.get(name), Mapping)), content)


def _unreadable(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError) and "Weights only" in str(error):
        return ("It holds more than tensors and plain values, or is none; to read such a file may run code that is in "
                "it.")
    if isinstance(error, (OSError, _NoStateDict)):
        return f"It cannot be read: {_first_line(error)}"
    return "It is no file of weights, or a damaged one."


def _bare(name: str) -> str:
    """A name without what wrappers put before it, in any combination."""
    return re.sub(r"^(module\.)+", "", name.replace("_orig_mod.", ""))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
