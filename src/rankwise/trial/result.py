"""What one rank of a trial measured, and the files in which it comes to whoever started it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_PROGRESS = "steps"
_TELL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class RankTrial:
    """What one rank measured over the steps after the warm-up."""

    rank: int
    world_size: int
    mode: str
    first_step_at: float
    """Unix seconds at the end of the first step."""
    step_seconds: list[float] = field(default_factory=list)
    """Of each measured step, without what was done between passes over the data."""
    split: dict[str, float] = field(default_factory=dict)
    """Mean seconds a step by phase: data, forward, backward, communication (exposed), optimizer, other."""
    communication_total: float | None = None
    """Seconds a step that gradients were on their way, hidden time included; None: not measured."""
    communication_from: str = ""
    """What told the total."""
    wire_bytes: float = 0.0
    """Bytes a step that this rank sent."""
    samples: int = 0
    """Of the measured global batches together; 0: not known."""
    global_batch: int = 0
    """Of the largest of them; 0: not known."""
    micro_batches: int = 0
    """Loop bodies in the measured steps."""
    loss: float | None = None
    """Of the last step: the loss summed over this rank's rows (or weight); None where it is no finite number."""
    loss_weight: float = 0.0
    """The rows (or weight) behind it."""
    memory_bytes: list[int] = field(default_factory=list)
    """Peak by device; see `peak_memory_bytes`."""
    model: dict[str, int] = field(default_factory=dict)
    """parameters, parameter_bytes, gradient_bytes, buffer_bytes, optimizer_bytes of all that was prepared."""
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    """Where asked for: bytes of each gradient, and seconds from the begin of backward to its arrival; medians."""

    def write(self, folder: Path) -> None:
        """Leave it in the trial's folder."""
        _file(folder, self.rank).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, rank: int) -> RankTrial | None:
        """What a rank left; None where it did not come so far."""
        try:
            values: dict[str, Any] = json.loads(_file(folder, rank).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        arrivals = [(size, seconds) for size, seconds in values.pop("arrivals")]
        return cls(**values, arrivals=arrivals)


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


class TrialOver(SystemExit):
    """The last step of a trial is done; raised on all ranks at the same step."""

    def __init__(self) -> None:
        super().__init__(0)


class Progress:
    """Says how far a trial is, now and then; for rank 0."""

    def __init__(self, folder: Path) -> None:
        self._file, self._told_at = folder / _PROGRESS, 0.0

    def tell(self, steps: int) -> None:
        now = time.monotonic()
        if now - self._told_at > _TELL_SECONDS:
            self._told_at = now
            self._file.write_text(str(steps))


def steps_made(folder: Path) -> int:
    """How far a trial is, as rank 0 last told."""
    try:
        return int((folder / _PROGRESS).read_text())
    except (OSError, ValueError):   # not yet, or in the middle of being written
        return 0
