"""The numbers on their way to the sinks: asked for now, written an interval later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.monitor.sinks import JsonLines, Sink, TensorBoard


@dataclass(frozen=True)
class Entry:
    """Numbers of one step; `values` may wait for the device, so it is called when the device has passed that step."""

    step: int
    epoch: int
    values: Callable[[], Mapping[str, Any]]
    record: str = ""
    """What kind of record it is; empty for numbers by name."""


def _nothing() -> None:
    """What a sink does that keeps nothing back."""


class Log:
    """Entries in their order, and the sinks that rank 0 writes them to."""

    def __init__(self, folder: Path, *, writes: bool, say: Callable[[str], None]) -> None:
        self.sinks: list[Sink] = [JsonLines(), TensorBoard()]
        self.first_step = 0   # not 0 where the run was resumed
        self._folder, self._writes, self._say = folder, writes, say
        self._open: list[Sink] = []
        self._new: list[Entry] = []
        self._due: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self._new.append(entry)

    def add_all(self, entries: Iterable[Entry]) -> None:
        self._new += entries

    def tell(self, entry: Entry) -> None:
        """Write something at once, for who looks on from outside."""
        self._write([entry])
        self._flush()

    def turn(self, entry: Entry) -> None:
        """An interval ended, with this entry: write what was added before the last call."""
        due, self._due, self._new = self._due, [*self._new, entry], []
        self._write(due)

    def settle(self) -> None:
        """Write all that was added, whether or not it has to be waited for, and have the sinks keep it.

        A run that is killed goes on from a checkpoint, and what was logged before that is never logged again.
        """
        due, self._due, self._new = [*self._due, *self._new], [], []
        self._write(due)
        self._flush()

    def _flush(self) -> None:
        for sink in self._open:
            with contextlib.suppress(OSError):   # told of at the next number
                getattr(sink, "flush", _nothing)()

    def close(self) -> None:
        for sink in self._open:
            with contextlib.suppress(OSError):
                sink.close()
        self._open.clear()

    def _write(self, entries: list[Entry]) -> None:
        for entry in entries:
            values = entry.values()
            if self._writes and values:
                self._send(entry, values)

    def _send(self, entry: Entry, values: Mapping[str, Any]) -> None:
        """Hand numbers to every sink, and records to those that take them; one that cannot write is let go of, and the
        training goes on."""
        for sink in list(self.sinks):
            take = getattr(sink, "record", None) if entry.record else None
            if entry.record and take is None:
                continue
            try:
                if not any(sink is known for known in self._open):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    sink.open(self._folder, self.first_step)
                    self._open.append(sink)
                if take is not None:
                    take(entry.record, entry.step, entry.epoch, values)
                else:
                    sink.write(entry.step, entry.epoch, values)
            except OSError as error:
                self.sinks.remove(sink)
                self._say(f"{type(sink).__name__} cannot write ({error}): it gets no more numbers of this run.")
