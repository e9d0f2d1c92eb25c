"""Whole interpreters for tests: a command with a deadline, and a check that it left no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

RANKWISE = [sys.executable, "-m", "rankwise"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
_MARK = "RANKWISE_TEST_LAUNCH"


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n--- output\n{self.out}\n--- errors\n{self.err}"


class Launch:
    """A command under way; every process that descends from it carries its mark."""

    def __init__(self, command: Sequence[str], folder: Path, prefix: Sequence[str] = (), **variables: str) -> None:
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, "OMP_NUM_THREADS": "1", _MARK: self.mark, **variables}
        self.process = subprocess.Popen([*prefix, *command], cwd=folder, env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def ended(self, deadline_seconds: float = 100.0) -> Ended:
        """Wait for the end, and require that nothing is left."""
        try:
            out, err = self.process.communicate(timeout=deadline_seconds)
        except subprocess.TimeoutExpired:
            self.end_all()
            out, err = self.process.communicate()
            raise AssertionError(f"no end within {deadline_seconds} s\n{out}\n{err}") from None
        left = self.none_left()
        assert not left, f"left behind: {left}"
        return Ended(self.process.returncode, out, err)

    def none_left(self, deadline_seconds: float = 5.0) -> list[str]:
        """Processes with this mark that do not end within the deadline; they are killed."""
        deadline = time.monotonic() + deadline_seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        names = [" ".join(process.cmdline()) for process in left if process.is_running()]
        self.end_all()
        return names

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def end_all(self) -> None:
        for process in self.processes():
            process.kill()


def run(command: Sequence[str], folder: Path, deadline_seconds: float = 100.0, prefix: Sequence[str] = (),
        **variables: str) -> Ended:
    """A command from start to end."""
    return Launch(command, folder, prefix, **variables).ended(deadline_seconds)


def wait_for(paths: Sequence[Path], deadline_seconds: float = 80.0) -> None:
    """Wait until these files exist."""
    deadline = time.monotonic() + deadline_seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"waited for {[str(path) for path in paths if not path.exists()]}"
        time.sleep(0.05)


def only(folder: Path) -> Path:
    """The one thing in a folder."""
    found, = folder.iterdir()
    return found
