"""What a checkpoint holds: the plain state of all that was prepared, in files that need no rankwise to be read.

A module is a safetensors file (see weights.py). Everything else is in one torch.save file, which
`torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from rankwise.checkpoint import folder as folders
from rankwise.checkpoint.weights import matched, plain_state, read_weights, write_weights
from rankwise.errors import CheckpointError
from rankwise.group import Group

T = TypeVar("T")

STATE = "state.pt"
# torch tells of a full disk and of a damaged file with a RuntimeError
_FILE_ERRORS = (OSError, EOFError, RuntimeError, pickle.UnpicklingError, SafetensorError)


class Checkpoints:
    """The checkpoints of a run: rank 0 writes, every rank reads, and all ranks learn of a failure."""

    def __init__(self, folder: Path, group: Group) -> None:
        self._folder, self._group = folder, group

    def save(self, step: int, prepared: dict[str, Any], position: dict[str, Any]) -> Path:
        """Write the checkpoint of this step; every rank gets its folder when it is on the disk.

        `position` is made of plain JSON values. Raises CheckpointError on every rank where rank 0 could not write.
        """
        target = folders.step_folder(self._folder, step)
        self._on_main("run.save()", lambda: _write(target, prepared, position))
        return target

    def export(self, module: nn.Module, path: Path) -> None:
        """Write the module's plain state dict with torch.save, atomically, from rank 0."""
        self._on_main("run.export()", lambda: export_weights(module, path))

    def find(self, source: Path) -> tuple[Path, list[CheckpointError]]:
        """The checkpoint that rank 0 would load from a run's folder or a checkpoint's; see `folder.find`."""
        return self._on_main("the search for a checkpoint", lambda: folders.find(source))

    def load(self, folder: Path, prepared: dict[str, Any]) -> dict[str, Any]:
        """Restore all that was prepared; returns the position. Every rank reads the files for itself.

        Raises CheckpointError, on every rank, where a rank cannot read them or they belong to another training.
        """
        content: dict[str, Any] = {}
        problem: CheckpointError | None = None
        try:
            content = folders.unseal(folder)
            _restore(folder, content["classes"], prepared)
        except CheckpointError as error:
            problem = error
        answers = self._group.gather_objects((problem, content))
        for rank, (problem, other) in enumerate(answers):
            if problem is not None:
                raise CheckpointError(f"Rank {rank}: {problem.given}", problem.truth, problem.remedy) from problem
            if other != answers[0][1]:
                raise CheckpointError(f"{folder} was to be loaded.", f"Rank {rank} sees other files there than rank 0.",
                                      "Keep the runs on a disk that all machines share, or copy the folder to each.")
        return dict(content["position"])

    def _on_main(self, place: str, action: Callable[[], T]) -> T:
        """`action()` on rank 0 while the others wait; its result, or its CheckpointError, on every rank."""
        outcome: Any = None
        with self._group.alone(place) as mine:
            if mine:
                try:
                    outcome = action()
                except CheckpointError as error:
                    outcome = error
        outcome = self._group.broadcast_object(outcome)
        if isinstance(outcome, CheckpointError):
            raise outcome
        return outcome  # type: ignore[no-any-return]


def export_weights(module: nn.Module, path: Path) -> None:
    """Write the module's plain state dict, on the CPU, for `torch.load(path)` anywhere.

    Raises CheckpointError where it cannot be written; what was at `path` is then as it was.
    """
    with _explained(path), folders.file_written_whole(path) as temporary:
        torch.save(plain_state(module), temporary)


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Turn what goes wrong while files are written into one clear error."""
    try:
        yield
    except _FILE_ERRORS as error:
        raise CheckpointError(f"{target} could not be written.", f"{str(error).rstrip('.')}.",
                              "See that its disk has room and that you may write there. "
                              "Earlier checkpoints are as they were.") from error


def _write(target: Path, prepared: dict[str, Any], position: dict[str, Any]) -> None:
    states: dict[str, Any] = {}
    with _explained(target), folders.written_whole(target) as temporary:
        for name, thing in prepared.items():
            if isinstance(thing, nn.Module):
                rest = write_weights(temporary / f"{name}.safetensors", plain_state(thing))
                if rest:
                    states[name] = rest
            else:
                states[name] = thing.state_dict()
        torch.save(states, temporary / STATE)
        _require_readable(temporary / STATE, target)
        folders.seal(temporary, {"position": position, "classes": _classes(prepared)})


def _require_readable(path: Path, target: Path) -> None:
    """A state that only unsafe unpickling could read is refused now, rather than when it is needed."""
    kinds = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if kinds:
        raise CheckpointError(f"{target} would hold values of the kind {', '.join(sorted(kinds))}.",
                              "A checkpoint holds tensors and plain Python values, which can be read without risk.",
                              "Convert them in the state_dict of what was prepared: a NumPy number with float(), "
                              "an array with torch.from_numpy.")


def _classes(prepared: dict[str, Any]) -> dict[str, str]:
    return {name: type(thing).__name__ for name, thing in prepared.items()}


def _restore(folder: Path, classes: dict[str, str], prepared: dict[str, Any]) -> None:
    """Compare everything, then load everything."""
    _require_same_things(folder, classes, prepared)
    try:
        states = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        for name, thing in prepared.items():
            if isinstance(thing, nn.Module):
                weights = read_weights(folder / f"{name}.safetensors")
                states[name] = matched(folder, name, thing, {**weights, **states.get(name, {})})
    except _FILE_ERRORS as error:
        raise CheckpointError(f"{folder} was to be loaded.", f"It cannot be read: {error}.",
                              "See that every machine reaches the folder, and that its files are whole.") from error
    for name, thing in prepared.items():
        try:
            thing.load_state_dict(states[name])
        except (ValueError, RuntimeError, KeyError) as error:
            raise CheckpointError(f"{folder} was to be loaded.", f"Its {name} does not fit: {error}.",
                                  "Prepare the same things as in the run that saved it.") from error


def _require_same_things(folder: Path, classes: dict[str, str], prepared: dict[str, Any]) -> None:
    now = _classes(prepared)
    modules = {name for name, thing in prepared.items() if isinstance(thing, nn.Module)}
    differences = [f"{name} was {classes.get(name, 'not there')} and is {now.get(name, 'not prepared')}"
                   for name in {**classes, **now}
                   if (name in classes) != (name in now) or (name not in modules and classes[name] != now[name])]
    if differences:
        raise CheckpointError(f"{folder} was to be loaded.", f"It is of another training: {'; '.join(differences)}.",
                              "Prepare the same things, in the same order, as in the run that saved it.")
