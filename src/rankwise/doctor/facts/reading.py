"""Reads the facts, each part in a process of its own: a driver that hangs or dies takes nothing else with it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankwise import environment
from rankwise.doctor.facts import Facts, Task, Unread, gpus, host, network, software
from rankwise.doctor.facts.identity import own_words
from rankwise.lifetime import end_with_parent

_PACKAGES = str(Path(__file__).parents[3])
_READERS: dict[str, Callable[..., Any]] = {"host": host.read, "software": software.read, "gpus": gpus.read,
                                           "network": network.read}   # the host first: it knows why others fail
FAMILIES = ("NCCL_", "TORCH_", "OMP_", "MASTER_", "GLOO_", "CUDA_VISIBLE_DEVICES")   # no other is shown
_LEAST_SECONDS = 30.0     # torch is read from disk, and on a busy machine that takes long
_PER_PART_SECONDS = 1.0   # of what has answered while another part was waited for


def read_facts(task: Task, *, limit_seconds: float) -> Facts:
    """All facts of this machine; a part that does not come within the limit is Unread. Interrupted, it leaves nothing.
    """
    arguments: dict[str, tuple[Any, ...]] = {"network": (task.endpoint, task.node_rank)}
    readers = {what: _started(what, arguments.get(what, ())) for what in _READERS}
    limit_seconds = max(limit_seconds, _LEAST_SECONDS)
    deadline = time.monotonic() + limit_seconds
    try:
        parts = {f"{what}_or_not": _answer(what, reader, deadline, limit_seconds) for what, reader in readers.items()}
    finally:
        _end(readers)
    return Facts(**parts, variables=environment.of_families(FAMILIES), own_words=own_words(), task=task)


def main(parent: int, what: str) -> None:
    """What a reader's process runs: it writes its part to the output that it was started with, and nothing else there.
    """
    end_with_parent(parent)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)   # libraries print
    arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 (our own parent wrote it)
    pickle.dump(_READERS[what](*arguments), answer)
    answer.close()


def _started(what: str, arguments: tuple[Any, ...]) -> subprocess.Popen[bytes] | OSError:
    """The reader of a part, or why the system starts none: too few open files, processes, or memory."""
    try:
        return _start(what, arguments)
    except OSError as error:
        return error


def _start(what: str, arguments: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    code = (f"import sys; sys.path[0] = {_PACKAGES!r}; from rankwise.doctor.facts.reading import main; "
            f"main({os.getpid()}, {what!r})")
    reader = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True)
    assert reader.stdin is not None
    reader.stdin.write(pickle.dumps(arguments))
    with contextlib.suppress(BrokenPipeError):   # it has ended already, and its exit code tells
        reader.stdin.flush()
    return reader


def _answer(what: str, reader: subprocess.Popen[bytes] | OSError, deadline: float, limit_seconds: float) -> Any:
    if isinstance(reader, OSError):
        return Unread(what=what, reason=f"no process can be started for it: {reader.strerror}", is_fault=True)
    try:
        out, err = reader.communicate(timeout=max(_PER_PART_SECONDS, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Unread(what=what, reason=f"no answer within {limit_seconds:.0f} s", is_fault=True)
    if reader.returncode == 0:
        return pickle.loads(out)  # noqa: S301 (our own child wrote it)
    words = err.decode("utf-8", "replace").strip().splitlines()
    if reader.returncode < 0:
        return Unread(what=what, reason=f"the process that asked was ended by signal {-reader.returncode}",
                      is_fault=True)
    return Unread(what=what, reason=words[-1][:300] if words else f"exit code {reader.returncode}", is_fault=False)


def _end(readers: Mapping[str, subprocess.Popen[bytes] | OSError]) -> None:
    for reader in readers.values():
        if isinstance(reader, OSError):
            continue
        if reader.poll() is None:
            reader.kill()
        reader.communicate()
