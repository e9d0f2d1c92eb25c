"""A container of an image: the command that starts it with devices, memory, this folder and the caller's user."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.images.engine import Engine

WORKSPACE = "/workspace"
_GRACE_SECONDS = 40.0      # a training saves and ends in 30, by default
_REMOVAL_SECONDS = 30.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Container:
    """What to start, and with what."""

    tag: str
    command: tuple[str, ...]
    folder: Path                       # is /workspace in it
    gpus: str | None = None            # all, or a list of numbers; None: a container without
    shared_memory: str = "8g"          # data workers and NCCL pass tensors through it; an engine's default is 64 MB
    publish: str | None = None         # a port of the host: PORT on loopback, or ADDRESS:PORT
    has_terminal: bool = False


def command(engine: Engine, container: Container, name: str, *, user: tuple[int, int], is_rootless: bool) -> list[str]:
    """The engine's command. `user` is uid and gid of the caller, whom files in the folder then belong to.

    Raises UsageError for a port, a size or a list of GPUs that cannot be read, and for a folder that cannot be mounted.
    """
    if ":" in str(container.folder):
        raise UsageError(f"This folder is {container.folder}.", "Engines cannot mount a folder with : in its name.",
                         "Change to a folder without, or rename it.")
    if not re.fullmatch(r"[1-9]\d*[bkmg]?", container.shared_memory):
        raise UsageError(f"--shm-size is {container.shared_memory!r}.", "It is a number of bytes, or of k, m or g.",
                         "Give --shm-size 8g, for example.")
    return [
        engine.program, "run", "--rm", "--pull=never", f"--name={name}",   # ours are in no registry
        "--interactive", *(["--tty"] if container.has_terminal else []),   # what is piped in arrives too
        *_user(engine, user, is_rootless=is_rootless),
        f"--volume={container.folder}:{WORKSPACE}", f"--workdir={WORKSPACE}",
        f"--shm-size={container.shared_memory}",
        *([*_gpus(engine, container.gpus), "--ulimit=memlock=-1"] if container.gpus else []),
        *([f"--publish={_published(container.publish)}"] if container.publish else []),
        container.tag, *container.command]


def run(arguments: Sequence[str], engine: Engine, name: str, *, has_terminal: bool) -> int:
    """The command to its end; returns its exit code. However this ends, the container is gone.

    SIGTERM is handed on, and the command has some time to end with a code of its own; else SystemExit (143).
    Raises KeyboardInterrupt when interrupted; what runs inside is told too, and has the same time. A second signal
    ends the waiting.
    """
    heard: list[int] = []
    before = {number: signal.signal(number, lambda number, _: heard.append(number))
              for number in (signal.SIGINT, signal.SIGTERM)}
    # In a session of its own the engine does not hear the terminal's Ctrl-C, which would arrive inside twice.
    client = subprocess.Popen(arguments, start_new_session=not has_terminal)
    try:
        code = _ended(client, lambda: bool(heard))
        if not heard and code is not None:
            return code
        code = _tell(engine, name, client, heard)
        if heard[0] == signal.SIGINT:
            raise KeyboardInterrupt
        if code is None:
            raise SystemExit(128 + heard[0])
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        client.kill()   # nothing happens where it has ended
        client.wait()
        remove(engine, name)


def remove(engine: Engine, name: str) -> None:
    """End the container where it still runs, and remove it; nothing happens where it is gone."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([engine.program, "rm", "--force", name], capture_output=True, check=False,
                       timeout=_REMOVAL_SECONDS)


def jupyter(publish: str) -> list[str]:
    """The command that starts JupyterLab where --publish reaches it; its token stays on."""
    as_root = ["--allow-root"] if os.getuid() == 0 else []   # the caller's user again
    return ["jupyter", "lab", "--ip=0.0.0.0", f"--port={publish.rpartition(':')[2]}", "--no-browser", *as_root]


def new_name() -> str:
    """A name that no container has, by which it can be ended."""
    return f"rankwise-{uuid.uuid4().hex[:12]}"


def caller() -> tuple[int, int]:
    """uid and gid of whoever calls."""
    return os.getuid(), os.getgid()


def _tell(engine: Engine, name: str, client: subprocess.Popen[bytes], heard: Sequence[int]) -> int | None:
    """Send what was heard into the container; its exit code, None where it was not there yet or did not end in time."""
    word = signal.Signals(heard[0]).name.removeprefix("SIG")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run([engine.program, "kill", f"--signal={word}", name], capture_output=True, check=False,
                              timeout=_REMOVAL_SECONDS)
        if told.returncode == 0:
            deadline = time.monotonic() + _GRACE_SECONDS
            return _ended(client, lambda: len(heard) > 1 or time.monotonic() > deadline)
    return None


def _ended(client: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> int | None:
    """The exit code of the engine's client; None where there is no more waiting for it."""
    while not is_over():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return client.wait(_LOOK_SECONDS)
    return None


def _user(engine: Engine, user: tuple[int, int], *, is_rootless: bool) -> list[str]:
    """Rootless podman has users of its own; with keep-id the caller is the same number inside as outside."""
    keep = ["--userns=keep-id"] if engine.name == "podman" and is_rootless else []
    return [*keep, f"--user={user[0]}:{user[1]}"]


def _gpus(engine: Engine, which: str) -> list[str]:
    numbers = which.split(",")
    if which != "all" and not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--gpus is {which}.", "It is all, none, or numbers of GPUs with commas between.",
                         "Give --gpus 0,1, for example.")
    if engine.name == "docker":
        return ["--gpus=all"] if which == "all" else [f'--gpus="device={which}"']
    return [f"--device=nvidia.com/gpu={number}" for number in numbers]


def _published(text: str) -> str:
    """On loopback, unless an address is given."""
    address, colon, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536 or not (_is_address(address) if colon else True):
        raise UsageError(f"--publish is {text}.", "It is PORT, the same inside and on loopback alone, or "
                         "ADDRESS:PORT, with an IPv4 address of this machine.", "Give --publish 8888, for example.")
    return f"{address or '127.0.0.1'}:{port}:{port}"


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.IPv4Address(text))
    except ValueError:
        return False
