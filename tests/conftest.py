"""A test that leaves a process, a process group, a thread or an environment variable behind fails."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(1)   # as the ranks have: sums have other bits with two

_GRACE_SECONDS = 3.0
_VARIABLES_OF_TOOLS = {"PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "TORCHINDUCTOR_CACHE_DIR"}   # set by torch itself


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Compare processes, threads, process groups and variables before and after each test."""
    before = _standing()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _left(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        pytest.fail("left behind: " + "; ".join(left))


def _standing() -> tuple[set[int], set[int | None], dict[str, str]]:
    return ({process.pid for process in _children()}, {thread.ident for thread in threading.enumerate()},
            {name: value for name, value in os.environ.items() if name not in _VARIABLES_OF_TOOLS})


def _left(before: tuple[set[int], set[int | None], dict[str, str]]) -> list[str]:
    processes, threads, variables = before
    _, _, now = _standing()
    changed = sorted(name for name in variables.keys() | now.keys() if variables.get(name) != now.get(name))
    return [
        *(f"process {process.pid} ({_command(process)})" for process in _children() if process.pid not in processes),
        *(f"thread {thread.name}" for thread in threading.enumerate() if thread.ident not in threads),
        *(f"environment variable {name}" for name in changed),
        *(["an open process group"] if _group_is_open() else []),
    ]


def _children() -> list[psutil.Process]:
    """Every descendant but the forkserver of the tests and what multiprocessing keeps beside it."""
    own = psutil.Process()
    return [process for process in own.children(recursive=True) if not _belongs_to_harness(process)]


def _belongs_to_harness(process: psutil.Process) -> bool:
    command = _command(process)
    return process.ppid() == os.getpid() and any(
        sign in command for sign in ("multiprocessing.forkserver", "multiprocessing.resource_tracker"))


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "ended"


def _group_is_open() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
