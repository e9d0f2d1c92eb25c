"""A rank's output: one log file a rank; rank 0 keeps the terminal and writes to its file as well."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rankwise.runfolder import LOGS

_TERMINAL_CODES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")


def log_file(run_folder: Path, rank: int) -> Path:
    """Where a rank's output is kept."""
    return run_folder / LOGS / f"rank{rank}.log"


def add_line(path: Path, text: str) -> None:
    """Text at the end of a log, from the launcher, when its rank has ended."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8", errors="replace") as log:
        log.write(text + "\n")


def clear_line() -> None:
    """On a terminal, remove the progress line that a rank was stopped in."""
    if sys.stdout.isatty():
        print("\r\x1b[2K", end="", flush=True)


def into_file(path: Path) -> None:
    """From here on all output of this process, native code's too, goes to the end of `path`; it has no input."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(nothing)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


@contextlib.contextmanager
def copied_to(path: Path) -> Iterator[TextIO]:
    """Within this block what Python prints stands in `path` too; gives that file. Native code's output does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = sys.stdout, sys.stderr
    with path.open("a", encoding="utf-8", errors="replace", buffering=1) as log:
        sys.stdout, sys.stderr = Copied(sys.stdout, log), Copied(sys.stderr, log)
        try:
            yield log
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.stdout, sys.stderr = before


class Followed:
    """A file that others append to: `show` prints what is new in it, for a launcher that has no terminal to share."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes = path, 0

    def show(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[:new.rfind(b"\n") + 1]   # a line that is still being written waits
        self._read_bytes += len(whole)
        if whole:
            sys.stdout.write(whole.decode("utf-8", "replace"))
            sys.stdout.flush()


class Copied:
    """A text stream whose finished lines are copied to a log, without what a terminal draws over again."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log = stream, log
        self._line = ""

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        *finished, self._line = (self._line + text).split("\n")
        for line in finished:
            self._log.write(_as_last_seen(line) + "\n")
        if "\r" in self._line:
            self._line = self._line[self._line.rindex("\r"):]
        if finished:
            self._stream.flush()
        return written

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _as_last_seen(line: str) -> str:
    """What a terminal shows of a line that was drawn over: the text after the last carriage return."""
    return _TERMINAL_CODES.sub("", line.rstrip("\r").rpartition("\r")[2])
