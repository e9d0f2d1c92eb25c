"""What `metrics.jsonl` says of a run, as plain values; a line that cannot be read is counted and left out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.stepparts import PARTS

FILE = "metrics.jsonl"

_LATEST_BYTES = 256_000
_PLACE = ("step", "epoch", "time")
Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something at a step. `time` is in seconds since 1970, None in the logs of an older rankwise."""

    step: int
    epoch: int
    time: float | None


@dataclass(frozen=True, kw_only=True)
class Start(Event):
    """The ranks were started. `attempt` counts the starts that the launcher made after a failure, from 0."""

    attempt: int
    target: str | None
    mode: str
    devices: int
    world_size: int
    settings: Values
    environment: Values


@dataclass(frozen=True, kw_only=True)
class Numbers(Event):
    """What was logged at a step, by name; None for what was no finite number."""

    values: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class RankSplit:
    """Seconds and bytes of one rank, means per step; `memory_bytes` are peaks, one for each device.

    `device_busy` is the share of the time in which the device ran some kernel. None: not measured.
    """

    seconds: Mapping[str, float]
    communication_total: float | None
    wire_bytes: float
    memory_bytes: tuple[float, ...]
    device_busy: float | None = None
    flops_per_second: float | None = None


@dataclass(frozen=True, kw_only=True)
class Split(Event):
    """Where the time of the latest `steps` steps, of so many samples over all ranks, went, on each rank."""

    steps: int
    samples: int
    clock: str
    communication_from: str
    ranks: tuple[RankSplit, ...]


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Event):
    """A checkpoint was taken; `path` is its place in the run's folder."""

    path: str


@dataclass(frozen=True, kw_only=True)
class End(Event):
    """The training ended: finished, failed, preempted or interrupted. `lines` say how it went."""

    how: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """A run: what was logged, in order. `damaged` counts the lines that could not be read.

    `splits` are without those of the first step of a start, in which much is made.
    """

    name: str
    folder: Path
    events: tuple[Event, ...] = ()
    damaged: int = 0
    starts: tuple[Start, ...] = field(init=False)
    numbers: tuple[Numbers, ...] = field(init=False)
    splits: tuple[Split, ...] = field(init=False)
    checkpoints: tuple[Checkpoint, ...] = field(init=False)

    def __post_init__(self) -> None:
        for name, kind in (("starts", Start), ("numbers", Numbers), ("checkpoints", Checkpoint)):
            object.__setattr__(self, name, tuple(each for each in self.events if isinstance(each, kind)))
        first_steps = {start.step + 1 for start in self.starts}
        object.__setattr__(self, "splits", tuple(each for each in self.events if isinstance(each, Split)
                                                 and not (each.steps == 1 and each.step in first_steps)))

    @property
    def end(self) -> End | None:
        """How the latest start ended; None where that is not on record."""
        last = next((each for each in reversed(self.events) if isinstance(each, (Start, End))), None)
        return last if isinstance(last, End) else None

    @property
    def last_time(self) -> float | None:
        return next((each.time for each in reversed(self.events) if each.time is not None), None)

    @property
    def last_step(self) -> int:
        return max((each.step for each in self.events), default=0)


def read(folder: Path) -> History:
    """The history of the run in this folder. Raises UsageError where it has logged nothing that can be read."""
    path = folder / FILE
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        raise UsageError(f"The run {folder.name} has no {FILE}.",
                         "It has logged nothing: it has just begun, it failed before its first step, or its script "
                         "does not use rankwise.", f"Look into {folder / 'logs'} for what it printed.") from None
    except OSError as error:
        raise UsageError(f"The file {path} cannot be read.", f"The system says: {error.strerror}.",
                         "Check its permissions.") from None
    found = _parsed(folder, text)
    if not found.events:
        raise UsageError(f"The file {path} has no line that can be read.", "It is empty." if found.damaged == 0 else
                         f"It has {found.damaged} damaged line{'s' * (found.damaged != 1)}.",
                         "Look into the run's folder for what else there is: logs, checkpoints.")
    return found


def latest(folder: Path) -> History:
    """The last part of the history of the run in this folder, which may be empty; quick also where the log is long."""
    try:
        with (folder / FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LATEST_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return History(name=folder.name, folder=folder)
    return _parsed(folder, text.partition("\n")[2] if size > _LATEST_BYTES else text)


def _parsed(folder: Path, text: str) -> History:
    events, damaged = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            events.append(_event(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
    return History(name=folder.name, folder=folder, events=tuple(events), damaged=damaged)


def _event(line: dict[str, Any]) -> Event:
    time = line.get("time")
    place: dict[str, Any] = {"step": int(line["step"]), "epoch": int(line["epoch"]),
                             "time": None if time is None else float(time)}
    if "record" in line:
        return _RECORDS[line["record"]](line, place)
    values = {name: None if value is None else float(value) for name, value in line.items() if name not in _PLACE}
    return Numbers(values=values, **place)


def _start(line: dict[str, Any], place: dict[str, Any]) -> Start:
    return Start(attempt=int(line["attempt"]), target=line["target"], mode=str(line["mode"]),
                 devices=int(line["devices"]), world_size=int(line["world_size"]), settings=dict(line["settings"]),
                 environment=dict(line["environment"]), **place)


def _split(line: dict[str, Any], place: dict[str, Any]) -> Split:
    return Split(steps=int(line["steps"]), samples=int(line["samples"]), clock=str(line["clock"]),
                 communication_from=str(line["communication_from"]), ranks=tuple(map(_rank, line["ranks"])), **place)


def _rank(values: dict[str, Any]) -> RankSplit:
    known = {name: None if values.get(name) is None else float(values[name])
             for name in ("communication_total", "device_busy", "flops_per_second")}
    return RankSplit(seconds={phase: float(values[phase]) for phase in PARTS}, wire_bytes=float(values["wire_bytes"]),
                     memory_bytes=tuple(map(float, values["memory_bytes"])), **known)


def _checkpoint(line: dict[str, Any], place: dict[str, Any]) -> Checkpoint:
    return Checkpoint(path=str(line["path"]), **place)


def _end(line: dict[str, Any], place: dict[str, Any]) -> End:
    return End(how=str(line["how"]), lines=tuple(map(str, line["lines"])), **place)


_RECORDS = {"start": _start, "split": _split, "checkpoint": _checkpoint, "end": _end}
