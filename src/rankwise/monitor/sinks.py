"""Where rank 0 sends what is logged: any object with `open`, `write` and `close`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from rankwise.stepparts import PARTS

_FLUSH_SECONDS = 1.0
_PLACE = {"step", "epoch", "time"}
_THIN_SECONDS = 0.1
_THIN_SPLIT_SECONDS = 1.0   # of six curves
_TENSORBOARD_FLUSH_SECONDS = 10


class Sink(Protocol):
    """A place for logged numbers; used by rank 0 alone, and opened at the first number.

    One that keeps numbers back for a while has a `flush()` too: it is called with each checkpoint. One that has a
    `record(kind, step, epoch, values)` gets what is no single number too: `start`, `split`, `checkpoint` and `end`.
    """

    def open(self, folder: Path, step: int) -> None:
        """Begin in the run's folder. A resumed run begins after `step`: what was logged behind it is superseded."""

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Take numbers, by name, that belong to a step and an epoch. A number may be NaN or infinite."""

    def close(self) -> None:
        """Keep all that was written; called once after `open`."""


class JsonLines:
    """`metrics.jsonl`: one object a line, with the time in Unix seconds; what is no finite number is null.

    A line with "record" is no number of the training but what became of it: its start, what its steps were spent on
    by rank, its checkpoints, its end.

    A resumed run does again what came after its checkpoint: lines of later steps go at once, and those of the very step
    (an evaluation after the last step of an epoch) when the same numbers come again. One that begins anew in its folder
    leaves the earlier log beside, as `metrics.superseded.jsonl`.
    """

    _file: TextIO
    _flushed_at = 0.0

    def open(self, folder: Path, step: int) -> None:
        self._path, self._resumed_at = folder / "metrics.jsonl", step
        self._renewed: set[frozenset[str]] = set()
        if step == 0 and self._path.exists():
            self._path.replace(self._path.with_name("metrics.superseded.jsonl"))
        self._keep(lambda line: line["step"] <= step)

    def _keep(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        if self._path.exists():
            _keep_lines(self._path, is_kept)
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        names = frozenset(values)
        if step == self._resumed_at and names not in self._renewed:
            self._renewed.add(names)
            self._file.close()
            self._keep(lambda line: line["step"] < step or line.keys() - _PLACE != names)
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._put({"step": step, "epoch": epoch, "time": _now(), **finite})

    def record(self, kind: str, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        self._put({"record": kind, "step": step, "epoch": epoch, "time": _now(), **values})

    def _put(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        if time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self._file.flush()
            self._flushed_at = time.monotonic()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """`tensorboard/`: event files with a curve for each name, over steps.

    Of numbers that come faster than ten times a second only some are written (the last is), for it costs some 70 us
    each time, and TensorBoard thins a curve to a thousand points anyway; metrics.jsonl has them all.
    """

    def __init__(self) -> None:
        self._writer: Any = None
        self._latest: dict[tuple[str, ...], tuple[int, Mapping[str, float]]] = {}
        self._written_at: dict[tuple[str, ...], float] = {}

    def open(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1,
                                     flush_secs=_TENSORBOARD_FLUSH_SECONDS)

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        self._take(step, values, _THIN_SECONDS)

    def _take(self, step: int, values: Mapping[str, float], thin_seconds: float) -> None:
        names = tuple(values)
        self._latest[names] = step, values
        if time.monotonic() - self._written_at.get(names, -math.inf) >= thin_seconds:
            self._put(names)

    def record(self, kind: str, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Of the records the parts of a step are curves: seconds, the mean over the ranks."""
        if kind == "split":
            ranks = values["ranks"]
            means = {f"step/{part}": sum(rank[part] for rank in ranks) / len(ranks) for part in PARTS}
            self._take(step, means, _THIN_SPLIT_SECONDS)

    def _put(self, names: tuple[str, ...]) -> None:
        step, values = self._latest.pop(names)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._written_at[names] = time.monotonic()

    def flush(self) -> None:
        for names in list(self._latest):
            self._put(names)
        self._writer.flush()

    def close(self) -> None:
        self.flush()
        self._writer.close()


def _now() -> float:
    return round(time.time(), 3)


def _keep_lines(path: Path, is_kept: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the other lines; the last one of a killed run may be cut."""
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            if is_kept(json.loads(line)):
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text("".join(kept), "utf-8")
    temporary.replace(path)
