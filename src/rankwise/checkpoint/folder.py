"""Checkpoint folders on a disk: written whole or not at all, sealed with checksums, and found again.

    checkpoints/
    ├── step-000196/
    │   ├── model.safetensors     one file for each prepared module
    │   ├── state.pt              optimizers, schedules and the like
    │   └── position.json         where the training stands, and the size and SHA-256 of each file beside it
    └── .step-000392.part/        being written or removed; a killed run's is removed when its run goes on
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankwise.errors import CheckpointError
from rankwise.runfolder import CHECKPOINTS, is_run

POSITION = "position.json"
FORMAT = 1
_PART = ".part"
_OLD = ".old"
_SEAL = "sha256"
_CHUNK_BYTES = 1 << 20


def step_folder(parent: Path, step: int) -> Path:
    """The folder of the checkpoint of this step."""
    return parent / f"step-{step:06d}"


@contextlib.contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends well, and else is removed.

    It lies beside `target`, and all of it is on the disk before the rename: a kill or a power failure leaves either
    the whole new folder or what was there before.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, aside = target.with_name(f".{target.name}{_PART}"), target.with_name(target.name + _OLD)
    _remove(temporary)
    temporary.mkdir()
    try:
        yield temporary
        permissions = temporary.stat().st_mode & 0o666   # as the umask has it; safetensors writes for its owner alone
        for file in temporary.iterdir():
            file.chmod(permissions)
            _sync(file)
        _sync(temporary)
        if target.exists():   # a folder cannot be renamed over another; `find` knows the one that steps aside
            remove(aside)
            target.rename(aside)
        temporary.rename(target)
        _sync(target.parent)
        remove(aside)
    finally:
        _remove(temporary)


def remove_leftovers(parent: Path) -> None:
    """Put in order what a killed writer left; to be called while nobody writes."""
    with contextlib.suppress(OSError):
        for leftover in list(parent.glob(f".step-*{_PART}")):
            _remove(leftover)
        for aside in list(parent.glob(f"step-*{_OLD}")):   # one that stepped aside for a newer of the same step
            target = aside.with_name(aside.name.removesuffix(_OLD))
            if target.exists():
                remove(aside)
            else:
                aside.rename(target)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, if it is there, at once as far as others see: a kill leaves no half under its name."""
    leaving = checkpoint.with_name(f".{checkpoint.name}{_PART}")
    with contextlib.suppress(OSError):
        checkpoint.rename(leaving)
    _remove(leaving)


def steps_of(parent: Path) -> dict[int, Path]:
    """The checkpoints in a folder, whole or not, by their step."""
    names = ((re.fullmatch(r"step-(\d+)", folder.name), folder) for folder in parent.iterdir())
    return {int(name[1]): folder for name, folder in names if name}


@contextlib.contextmanager
def file_written_whole(target: Path) -> Iterator[Path]:
    """The same for one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}{_PART}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def seal(folder: Path, content: dict[str, Any]) -> None:
    """Write `content` and the SHA-256 of the files beside it to position.json, which is the last to be written.

    It ends with the SHA-256 of itself.
    """
    files = {file.name: _fingerprint(file) for file in sorted(folder.iterdir())}
    sealed = {"format": FORMAT, **content, "files": files}
    text = json.dumps({**sealed, _SEAL: _sha256_of(sealed)}, indent=2)
    (folder / POSITION).write_text(text + "\n", "utf-8")


def _sha256_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def unseal(folder: Path) -> dict[str, Any]:
    """The content of position.json. Raises CheckpointError where it cannot be read or is not what was written."""
    path = folder / POSITION
    try:
        content = json.loads(path.read_text("utf-8"))
        seal, is_known = content.pop(_SEAL), content["format"] == FORMAT
        if is_known and seal != _sha256_of(content):
            raise ValueError("its SHA-256 is another")
        if not is_known:
            raise CheckpointError(f"{folder} has checkpoint format {content['format']}.",
                                  f"This version of rankwise reads format {FORMAT}.",
                                  "Use the version that wrote it.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder} was to be loaded.", f"Its {POSITION} cannot be read ({error}).",
                              "Give the folder of a run, or of one of its checkpoints.") from error
    return dict(content)


def require_sound(folder: Path) -> None:
    """Raise CheckpointError where a file is missing, or differs from what was written."""
    for name, expected in unseal(folder)["files"].items():
        try:
            actual = _fingerprint(folder / name)
        except OSError as error:
            raise _damaged(folder, f"{name} cannot be read ({error.strerror})") from error
        if actual != expected:
            truth = (f"has {actual['bytes']} bytes, and {expected['bytes']} were written"
                     if actual["bytes"] != expected["bytes"] else "does not have the SHA-256 of what was written")
            raise _damaged(folder, f"{name} {truth}")


def find(source: Path) -> tuple[Path, list[CheckpointError]]:
    """The checkpoint to load, and what is wrong with those that were passed over.

    `source` is one checkpoint, which is taken or refused; or a run's folder, whose newest sound one is taken.
    Raises CheckpointError where there is none.
    """
    if not is_run(source):
        require_sound(source)
        return source, []
    folder, passed_over = newest_sound(source / CHECKPOINTS)
    if folder is None:
        truth = f"The newest: {passed_over[0].truth}" if passed_over else "It holds none yet."
        raise CheckpointError(f"{source} has no checkpoint that can be loaded.", truth,
                              "Give --resume another run, or start anew without it.")
    return folder, passed_over


def newest_sound(parent: Path) -> tuple[Path | None, list[CheckpointError]]:
    """The newest checkpoint in a folder that is whole, and what is wrong with those that are newer."""
    passed_over: list[CheckpointError] = []
    for folder in _newest_first(parent):
        try:
            require_sound(folder)
        except CheckpointError as error:
            passed_over.append(error)
        else:
            return folder, passed_over
    return None, passed_over


def _newest_first(parent: Path) -> list[Path]:
    try:
        folders = list(parent.iterdir())
    except FileNotFoundError:
        folders = []
    except OSError as error:
        raise CheckpointError(f"A checkpoint was to be found in {parent}.", f"It cannot be read ({error.strerror}).",
                              "See that you may read it.") from error
    names = [re.fullmatch(rf"step-(\d+)({re.escape(_OLD)})?", folder.name) for folder in folders]
    order = sorted(((int(name[1]), name[2] is None, name[0]) for name in names if name), reverse=True)
    return [parent / name for _, _, name in order]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fingerprint(file: Path) -> dict[str, Any]:
    checksum, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(chunk):
            checksum.update(chunk[:count])
        return {"bytes": stream.tell(), "sha256": checksum.hexdigest()}


def _damaged(folder: Path, truth: str) -> CheckpointError:
    return CheckpointError(f"{folder} was to be loaded.", f"It is damaged: {truth}.",
                           "Give --resume an older checkpoint of the run, by its folder.")
