"""What a checkpoint holds: the plain state of all that was prepared, in files that need no rankwise to be read.

A module is a safetensors file (see weights.py). Everything else is in one torch.save file, which
`torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from rankwise.checkpoint import folder as folders
from rankwise.checkpoint.snapshot import Staging
from rankwise.checkpoint.weights import matched, plain_state, read_weights, write_weights
from rankwise.errors import CheckpointError

STATE = "state.pt"
# torch tells of a full disk and of a damaged file with a RuntimeError
FILE_ERRORS = (OSError, EOFError, RuntimeError, pickle.UnpicklingError, SafetensorError)


def state_of(prepared: dict[str, Any]) -> dict[str, Any]:
    """The live state of all that was prepared, under plain names: what a snapshot is taken of."""
    return {name: plain_state(thing) if isinstance(thing, nn.Module) else thing.state_dict()
            for name, thing in prepared.items()}


def classes_of(prepared: dict[str, Any]) -> dict[str, str]:
    return {name: type(thing).__name__ for name, thing in prepared.items()}


def modules_of(prepared: dict[str, Any]) -> set[str]:
    return {name for name, thing in prepared.items() if isinstance(thing, nn.Module)}


def write(target: Path, states: dict[str, Any], modules: set[str], content: dict[str, Any]) -> None:
    """Write a snapshot of `state_of`, and `content` (plain JSON values) to the manifest, as the checkpoint `target`.

    Raises CheckpointError where it cannot be written; what was there before is then as it was.
    """
    with _explained(target), folders.written_whole(target) as temporary:
        rest = {}
        for name, state in states.items():
            if name in modules:
                state = write_weights(temporary / f"{name}.safetensors", state)
            if state or name not in modules:
                rest[name] = state
        torch.save(rest, temporary / STATE)
        folders.seal(temporary, content)


def export_weights(module: nn.Module, path: Path) -> None:
    """Write the module's plain state dict, on the CPU, for `torch.load(path)` anywhere.

    Raises CheckpointError where it cannot be written; what was at `path` is then as it was.
    """
    state = Staging().take(plain_state(module))
    with _explained(path), folders.file_written_whole(path) as temporary:
        torch.save(state, temporary)


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Turn what goes wrong while files are written into one clear error."""
    try:
        yield
    except FILE_ERRORS as error:
        raise CheckpointError(f"{target} could not be written.", f"{str(error).rstrip('.')}.",
                              "See that its disk has room and that you may write there. "
                              "Earlier checkpoints are as they were.") from error


def restore(folder: Path, classes: dict[str, str], prepared: dict[str, Any]) -> None:
    """Load all that was prepared from a checkpoint, after everything was compared.

    Raises CheckpointError where the files cannot be read or belong to another training.
    """
    _require_same_things(folder, classes, prepared)
    try:
        states = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        for name, thing in prepared.items():
            if isinstance(thing, nn.Module):
                weights = read_weights(folder / f"{name}.safetensors")
                states[name] = matched(folder, name, thing, {**weights, **states.get(name, {})})
    except FILE_ERRORS as error:
        raise CheckpointError(f"{folder} was to be loaded.", f"It cannot be read: {error}.",
                              "See that every machine reaches the folder, and that its files are whole.") from error
    for name, thing in prepared.items():
        try:
            thing.load_state_dict(states[name])
        except (ValueError, RuntimeError, KeyError) as error:
            raise CheckpointError(f"{folder} was to be loaded.", f"Its {name} does not fit: {error}.",
                                  "Prepare the same things as in the run that saved it.") from error


def _require_same_things(folder: Path, classes: dict[str, str], prepared: dict[str, Any]) -> None:
    now, modules = classes_of(prepared), modules_of(prepared)
    differences = [f"{name} was {classes.get(name, 'not there')} and is {now.get(name, 'not prepared')}"
                   for name in {**classes, **now}
                   if (name in classes) != (name in now) or (name not in modules and classes[name] != now[name])]
    if differences:
        raise CheckpointError(f"{folder} was to be loaded.", f"It is of another training: {'; '.join(differences)}.",
                              "Prepare the same things, in the same order, as in the run that saved it.")
